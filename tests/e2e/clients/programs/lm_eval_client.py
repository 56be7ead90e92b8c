"""lm-evaluation-harness against a server: likelihoods in each way that its models ask for them, and
a task from its dataset to its score. Prints what it found as JSON.

Arguments: the server's address, the model's folder, pairs of texts as JSON, a folder for the task.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

url, folder, pairs_json, task_folder = sys.argv[1:]
pairs: list[tuple[str, str]] = [tuple(pair) for pair in json.loads(pairs_json)]
root = Path(task_folder)
root.mkdir()
os.environ |= {"HF_HOME": str(root / "hub"), "HF_HUB_OFFLINE": "1", "OPENAI_API_KEY": "none"}

from lm_eval.api.instance import Instance  # noqa: E402
from lm_eval.evaluator import simple_evaluate  # noqa: E402
from lm_eval.models.openai_completions import LocalChatCompletion, LocalCompletionsAPI  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402

completions = {"model": "tiny", "base_url": f"{url}/completions"}
local = {**completions, "tokenizer": folder, "tokenizer_backend": "huggingface"}


def instances(kind: str, arguments: list[Any]) -> list[Instance]:
    return [Instance(kind, {}, each, place) for place, each in enumerate(arguments)]


def likelihoods(**settings: Any) -> list[tuple[float, bool]]:
    model = LocalCompletionsAPI(**settings)
    return [
        (float(logprob), bool(greedy))
        for logprob, greedy in model.loglikelihood(instances("loglikelihood", pairs))
    ]


found: dict[str, Any] = {
    "tokens": likelihoods(**local, batch_size=4),
    "texts": likelihoods(**local, tokenized_requests=False),
    "many": likelihoods(**local, num_concurrent=4),
    "remote": likelihoods(**completions, tokenizer_backend="remote"),
}
model = LocalCompletionsAPI(**local)
found["rolling"] = model.loglikelihood_rolling(instances("loglikelihood_rolling", [(pairs[0][0],)]))
until = {"until": ["\n\n"], "max_gen_toks": 8}
found["until"] = model.generate_until(instances("generate_until", [(pairs[0][0], until)] * 2))
chat = LocalChatCompletion(model="tiny", base_url=f"{url}/chat/completions")
asked = chat.apply_chat_template([{"role": "user", "content": pairs[0][0]}])
found["chat"] = chat.generate_until(instances("generate_until", [(asked, until)]))

questions = [
    {"question": pairs[0][0], "choices": [pairs[0][1], pairs[1][1]], "answer": answer}
    for answer in (0, 1, 1)
]
(root / "questions.jsonl").write_text("".join(json.dumps(each) + "\n" for each in questions))
(root / "capitals.yaml").write_text(
    json.dumps(
        {
            "task": "capitals",
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": str(root / "questions.jsonl")}},
            "test_split": "test",
            "output_type": "multiple_choice",
            "doc_to_text": "{{question}}",
            "doc_to_choice": "{{choices}}",
            "doc_to_target": "answer",
            "target_delimiter": "",
            "metric_list": [{"metric": "acc"}],
        }
    )
)
evaluated = simple_evaluate(
    model="local-completions",
    model_args=local,
    tasks=["capitals"],
    task_manager=TaskManager(include_path=str(root), include_defaults=False),
    bootstrap_iters=0,
)
found["accuracy"] = evaluated["results"]["capitals"]["acc,none"]
first, second = found["tokens"][0][0], found["tokens"][1][0]
chosen = 0 if first > second else 1
found["accuracy_by_hand"] = sum(each["answer"] == chosen for each in questions) / len(questions)
print(json.dumps(found))
