"""What Markdown becomes: known elements and texts, whatever is written."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmx.router.console.markdown_tree import LONGEST_COLOURED, TAGS, Node, markdown_tree

ATTRIBUTES = {"href", "start", "align", "class", "language"}


def text_of(node: Node) -> str:
    return node if isinstance(node, str) else "".join(text_of(child) for child in node[2:])


def elements(nodes: list[Node]) -> list[Any]:
    found = []
    for node in nodes:
        if not isinstance(node, str):
            found += [node, *elements(node[2:])]
    return found


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("1. a\n   - b\n   - c\n2. d", [
            ["ol", {}, ["li", {}, "a", ["ul", {}, ["li", {}, "b"], ["li", {}, "c"]]],
             ["li", {}, "d"]]]),
        ("3. a", [["ol", {"start": 3}, ["li", {}, "a"]]]),
        ("|a|\n|-:|\n|1|", [
            ["table", {}, ["thead", {}, ["tr", {}, ["th", {"align": "right"}, "a"]]],
             ["tbody", {}, ["tr", {}, ["td", {"align": "right"}, "1"]]]]]),
        ("---\n", [["hr", {}]]),
        ("~~a~~ b  \nc", [["p", {}, ["s", {}, "a"], " b", ["br", {}], "c"]]),
        ("- [x] a\n- [ ] b", [["ul", {}, ["li", {}, ["span", {"class": "task"}, "☑"], " a"],
                              ["li", {}, ["span", {"class": "task"}, "☐"], " b"]]]),
        ("[a](https://b) ![c](http://d)", [
            ["p", {}, ["a", {"href": "https://b"}, "a"], " ", ["a", {"href": "http://d"}, "c"]]]),
        ("```py\nx = 1\n```", [["pre", {"language": "py"}, "x ", ["span", {"class": "o"}, "="], " ",
                               ["span", {"class": "mi"}, "1"]]]),
        ("```nothing-known\n<b>\n```", [["pre", {"language": "nothing-known"}, "<b>"]]),
    ],
)  # fmt: skip
def test_what_models_write(text: str, tree: list[Node]) -> None:
    assert markdown_tree(text) == tree


@pytest.mark.parametrize(
    "text",
    [
        "<img src=x onerror=alert(1)>", "<script>alert(1)</script>", "[a](javascript:alert(1))",
        "[a](JaVaScRiPt:alert(1))", "[a](data:text/html;base64,AA==)", "![a](data:image/svg+xml,x)",
        "<javascript:alert(1)>", "[a](&#106;avascript:alert(1))", "[a](/admin/x)", "[a](//evil)",
        "[a](http:admin/x)", "[a](HTTPS:/admin/x)", "![a](http:admin/x)", "<http:admin/x>",
    ],
)  # fmt: skip
def test_nothing_runs_and_nothing_leads_into_the_server(text: str) -> None:
    found = elements(markdown_tree(text))
    assert not [one for one in found if one[0] == "a"]
    assert {one[0] for one in found} <= {"p", "span"}


@pytest.mark.parametrize("text", [">" * 100_000 + " x", "*a " * 260 + "b" + " a*" * 260])
def test_what_is_nested_too_deep_is_shown_as_it_is(text: str) -> None:
    assert markdown_tree(text) == [["pre", {}, text]]


@pytest.mark.parametrize("link", ["[a] ", "![a] "])
def test_many_links_to_one_long_address_are_shown_as_they_are(link: str) -> None:
    address = f"https://b/{'c' * 5_000}"
    text = f"[a]: {address}\n\n{link * 200}"
    assert markdown_tree(text) == [["pre", {}, text]]
    written = f"[a]({address}) " * 20 + "[d](https://e/" + "\N{GRINNING FACE}" * 500 + ")"
    assert len([one for one in elements(markdown_tree(written)) if one[0] == "a"]) == 21


def test_long_code_has_no_colours() -> None:
    code = "x = 1\n" * LONGEST_COLOURED
    assert markdown_tree(f"```py\n{code}```") == [["pre", {"language": "py"}, code[:-1]]]


MARKS = st.text(
    st.sampled_from("a1 \n\t*_`~[]()<>!#-+.|:>&;\\\"'=/") | st.characters(), max_size=300
)
CODE = st.text(st.sampled_from("ab1 \n{}()\"'#=/<>$&;:-") | st.characters(), max_size=200)
LANGUAGES = st.sampled_from(["py", "js", "html", "bash", "yaml", "json", "c", "rust", "diff"])


@given(MARKS)
def test_a_tree_holds_known_elements_alone(text: str) -> None:
    for tag, attributes, *_ in elements(markdown_tree(text)):
        assert tag in TAGS
        assert set(attributes) <= ATTRIBUTES


@given(LANGUAGES, CODE)
def test_code_is_coloured_and_stays_the_same(language: str, code: str) -> None:
    code = code.replace("`", "'")
    (plain,) = markdown_tree(f"```\n{code}\n```")
    (coloured,) = markdown_tree(f"```{language}\n{code}\n```")
    assert text_of(coloured) == text_of(plain)
