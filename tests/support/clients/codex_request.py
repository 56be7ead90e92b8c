"""A request as Codex sends it, by what is publicly known of its fields: the second turn of a
session that has called a function and a custom tool. More than 45 KB, with 13 tools of three
types."""

import json
from typing import Any, Final

PATCH_GRAMMAR: Final = r"""start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?

hunk: add_hunk | delete_hunk | update_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
update_hunk: "*** Update File: " filename LF change_move? change?

filename: /(.+)/
add_line: "+" /(.*)/ LF -> line

change_move: "*** Move to: " filename LF
change: (change_context | change_line)+ eof_line?
change_context: ("@@" | "@@ " /(.+)/) LF
change_line: ("+" | "-" | " ") /(.*)/ LF
eof_line: "*** End of File" LF

%import common.LF
"""
PATCH: Final = "*** Begin Patch\n*** Update File: a.py\n@@\n-x = 1\n+x = 2\n*** End Patch"

_ADVICE: Final = (
    "Read the files around a change before you make it, keep to their style, and run the tests "
    "that are near. "
)


def _function(name: str, *arguments: str) -> dict[str, Any]:
    return {
        "type": "function",
        "name": name,
        "description": f"{name.replace('_', ' ').capitalize()}. {_ADVICE * 3}",
        "strict": False,
        "parameters": {
            "type": "object",
            "properties": {one: {"type": "string", "description": _ADVICE} for one in arguments},
            "required": list(arguments[:1]),
            "additionalProperties": False,
        },
    }


FUNCTIONS: Final = (
    _function("exec_command", "cmd", "workdir", "shell", "justification"),
    _function("write_stdin", "session_id", "chars"),
    _function("update_plan", "explanation", "plan"),
    _function("request_user_input", "questions"),
    _function("view_image", "path"),
    _function("spawn_agent", "message", "agent_type"),
    _function("send_input", "id", "message"),
    _function("wait_agent", "ids"),
    _function("close_agent", "id"),
    _function("mcp__files__read", "path"),
    _function("mcp__files__search", "pattern", "path"),
)


def codex_request(model: str, prompt: str) -> dict[str, Any]:
    """Return the body."""

    def said(role: str, text: str) -> dict[str, Any]:
        kind = "output_text" if role == "assistant" else "input_text"
        content = [{"type": kind, "text": text}]
        return {"type": "message", "role": role, "content": content}

    custom = {
        "type": "custom",
        "name": "apply_patch",
        "description": "Use the `apply_patch` tool to edit files.",
        "format": {"type": "grammar", "syntax": "lark", "definition": PATCH_GRAMMAR},
    }
    return {
        "model": model,
        "instructions": f"You are a coding agent. {_ADVICE * 220}",
        "input": [
            said(
                "developer", f"<permissions instructions>{_ADVICE * 20}</permissions instructions>"
            ),
            said("user", f"# AGENTS.md instructions\n\n{_ADVICE * 40}"),
            said("user", "<environment_context>\n  <cwd>/work</cwd>\n</environment_context>"),
            said("user", "Change x."),
            {
                "type": "reasoning",
                "summary": [{"type": "summary_text", "text": "Look first."}],
                "content": None,
                "encrypted_content": "gAAAAABfromanotherserver",
            },
            {**said("assistant", "I look at it."), "phase": "commentary"},
            {
                "type": "function_call",
                "name": "exec_command",
                "arguments": json.dumps({"cmd": "cat a.py"}),
                "call_id": "call_1",
            },
            {"type": "function_call_output", "call_id": "call_1", "output": "x = 1\n" * 900},
            {
                "type": "custom_tool_call",
                "status": "completed",
                "call_id": "call_2",
                "name": "apply_patch",
                "input": PATCH,
            },
            {"type": "custom_tool_call_output", "call_id": "call_2", "output": "Done."},
            {"type": "web_search_call", "status": "completed", "action": {"type": "search"}},
            said("user", prompt),
        ],
        "tools": [*FUNCTIONS, custom, {"type": "web_search", "external_web_access": True}],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "service_tier": "auto",
        "prompt_cache_key": "0199a1b2-0000-7000-8000-000000000000",
        "text": {"verbosity": "low"},
        "client_metadata": {"x-codex-installation-id": "0"},
    }
