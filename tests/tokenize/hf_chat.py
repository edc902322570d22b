#!/usr/bin/env python3
"""Checks --format chat against apply_chat_template in HF transformers: hf_chat.py XFFL_TOKENIZE TEMPLATE TEXT...

For 200 seeded conversations: the ids equal those of apply_chat_template with the model's template, and the targets equal
its assistant mask, where the template marks the assistant's message and the token that ends it. For messages that
spell control tokens: the ids equal those of the template's control tokens and of the texts between them, encoded apart.
Exit code 77: transformers is not installed.
"""

import json
import pathlib
import random
import subprocess
import sys
import tempfile

try:
    import transformers
except ImportError as error:
    print(f"SKIPPED: {error}")
    sys.exit(77)
import hf_same_bpe
from hf_same_ids import read_shard, read_targets
from mixed_text import mixed_text

TURNS = ("{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate') }}"
         "{% endif %}")
LLAMA3_TURN = ("{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' }}{% if message['role'] == 'assistant' %}"
               "{% generation %}{{ message['content'] | trim + '<|eot_id|>' }}{% endgeneration %}"
               "{% else %}{{ message['content'] | trim + '<|eot_id|>' }}{% endif %}")
# The templates of the models' tokenizer_config.json, without tools, with {% generation %} around the text that the model generates.
TEMPLATES = {
    "llama-2": "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}"
               "{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}{% for message in loop_messages %}" + TURNS +
               "{% if loop.index0 == 0 and system_message != false %}{% set content = '<<SYS>>\n' + system_message + '\n<</SYS>>\n\n' + "
               "message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}"
               "{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}"
               "{% generation %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endgeneration %}{% endif %}{% endfor %}",
    "llama-3": "{{ bos_token }}{% for message in messages %}" + LLAMA3_TURN + "{% endfor %}",
    "llama-3.1": "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set system_message = messages[0]['content'] | trim %}"
                 "{% set messages = messages[1:] %}{% else %}{% set system_message = '' %}{% endif %}"
                 "{{ '<|start_header_id|>system<|end_header_id|>\n\n' }}{{ 'Cutting Knowledge Date: December 2023\n' }}"
                 "{{ 'Today Date: 26 Jul 2024\n\n' }}{{ system_message }}{{ '<|eot_id|>' }}{% for message in messages %}" + LLAMA3_TURN +
                 "{% endfor %}",
    "chatml": "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}{% if message['role'] == 'assistant' %}"
              "{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}{% else %}{{ message['content'] + '<|im_end|>' }}"
              "{% endif %}{{ '\n' }}{% endfor %}",
    "mistral": "{{ bos_token }}{% for message in messages %}" + TURNS + "{% if message['role'] == 'user' %}"
               "{{ '[INST] ' + message['content'] + ' [/INST]' }}{% else %}{% generation %}{{ message['content'] + eos_token }}"
               "{% endgeneration %}{% endif %}{% endfor %}",
    "mistral-v3": "{{ bos_token }}{% for message in messages %}" + TURNS + "{% if message['role'] == 'user' %}"
                  "{{ '[INST] ' + message['content'] + '[/INST]' }}{% else %}{% generation %}{{ ' ' + message['content'] | trim + eos_token }}"
                  "{% endgeneration %}{% endif %}{% endfor %}",
}
CONTROLS = {"llama-3": ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"], "chatml": ["<|im_start|>", "<|im_end|>"],
            "mistral-v3": ["[INST]", "[/INST]"]}
CONTROLS["llama-3.1"] = CONTROLS["llama-3"]
SYSTEM = {"llama-2", "llama-3", "llama-3.1", "chatml"}
SPACES = ["", "", " ", "\n", "  \n", "\t", "\u00a0", "\u2003 ", "\x1c", "\n\n\n"]


def tokenizers(program, template, texts, folder):
    """Folders of tokenizers of the kinds that models with this template have."""
    if template in ("llama-2", "mistral"):
        path, source = folder / "sentencepiece", folder / "texts.txt"
        source.write_text("\n\n".join(texts[:2]), encoding="utf-8")
        subprocess.run([program, "train", "--input", source, "--output", path, "--vocab-size", "700"], check=True, stdout=subprocess.DEVNULL)
        yield path, transformers.AutoTokenizer.from_pretrained(path, chat_template=TEMPLATES[template])
    for kind in ["llama2", "first"] if template in ("llama-2", "mistral", "mistral-v3") else ["llama3", "gpt2"]:
        llama2 = kind in ("llama2", "first")
        tokenizer = (hf_same_bpe.trained_with_byte_fallback if llama2 else hf_same_bpe.trained)(kind, texts, 1500)
        tokenizer.add_special_tokens([hf_same_bpe.AddedToken(name, special=True, normalized=False)
                                      for name in CONTROLS.get(template, []) + ["<s>", "</s>"] * llama2])
        bos, eos = ("<s>", "</s>") if llama2 else ("<|begin_of_text|>", CONTROLS[template][-1])
        path = folder / kind
        path.mkdir()
        tokenizer.save(str(path / "tokenizer.json"))
        (path / "tokenizer_config.json").write_text(json.dumps({"bos_token": bos, "eos_token": eos}))
        yield path, transformers.PreTrainedTokenizerFast(tokenizer_file=str(path / "tokenizer.json"), bos_token=bos, eos_token=eos,
                                                         chat_template=TEMPLATES[template])


def conversation(template, words, rng, message):
    chat = [{"role": "system", "content": message()}] if template in SYSTEM and rng.random() < 0.5 else []
    for _ in range(rng.randint(1, 4)):
        chat += [{"role": "user", "content": message()}, {"role": "assistant", "content": message()}]
    return chat


def ours(program, tokenizer, template, chats, folder):
    source, shard = folder / "chats.jsonl", folder / "chats.tokens"
    source.write_text("".join(json.dumps({"messages": chat, "id": 1}) + "\n" for chat in chats), encoding="utf-8")
    subprocess.run([program, "encode", "--tokenizer", tokenizer, "--format", "chat", "--chat-template", template, "--input", source,
                    "--output", shard, "--no-pack", "--sequence-length", "1000000"], check=True, stdout=subprocess.DEVNULL)
    return list(zip(read_shard(shard), read_targets(shard)))


def expected_of(tokenizer, chat):
    result = tokenizer.apply_chat_template(chat, tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
    return result["input_ids"], result["assistant_masks"]


def compare(what, chats, found, expected):
    assert len(found) == len(chats), (len(found), len(chats))
    wrong = 0
    for chat, (ids, targets), (hf_ids, hf_targets) in zip(chats, found, expected):
        assert 1 in targets and 0 in targets
        if (ids, targets) == (list(hf_ids), list(hf_targets)):
            continue
        wrong += 1
        ids, hf_ids = list(zip(ids, targets)), list(zip(hf_ids, hf_targets))
        at = next((i for i, (a, b) in enumerate(zip(ids, hf_ids)) if a != b), min(len(ids), len(hf_ids)))
        if wrong <= 3:
            print(f"  differs at token {at} of {chat}: ours {ids[at - 2:at + 6]}, HF {hf_ids[at - 2:at + 6]}")
    print(f"{what}: {len(chats)} conversations, {sum(len(ids) for ids, _ in found)} tokens, "
          f"{sum(sum(targets) for _, targets in found)} targets, {wrong} wrong")
    return wrong


def spelled(tokenizer, template, chats):
    """The ids of conversations whose messages spell control tokens: a private character stands for each message."""
    places = [chr(0xE000 + i) for i in range(32)]
    for chat in chats:
        rendered = tokenizer.apply_chat_template([{**each, "content": places[i]} for i, each in enumerate(chat)], tokenize=False)
        backend = tokenizer.backend_tokenizer
        parts, at = [], 0  # control tokens, and the texts between them
        controls = CONTROLS[template] + [tokenizer.bos_token]
        while at < len(rendered):
            control = next((name for name in controls if rendered.startswith(name, at)), None)
            if control:
                parts.append(control)
                at += len(control)
                continue
            end = min((rendered.find(name, at) for name in controls if name in rendered[at:]), default=len(rendered))
            text = rendered[at:end]
            for i, each in enumerate(chat):
                text = text.replace(places[i], each["content"].strip() if template.startswith("llama-3") else each["content"])
            parts.append((text,))
            at = end
        ids = []
        backend.encode_special_tokens = True  # the spelling of a special token is text
        for part in parts:
            ids += backend.encode(part[0], add_special_tokens=False).ids if isinstance(part, tuple) else [tokenizer.convert_tokens_to_ids(part)]
        backend.encode_special_tokens = False
        yield ids


def main(program, template, *paths):
    print("transformers", transformers.__version__)
    texts = [pathlib.Path(path).read_text(encoding="utf-8") for path in paths]
    words = " ".join(texts).split()
    texts += [mixed_text(2000, seed, words) for seed in range(20)]
    wrong = 0
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for path, tokenizer in tokenizers(program, template, texts, folder):
            rng = random.Random(template)
            control = [token for token in tokenizer.all_special_tokens + list(tokenizer.get_added_vocab())]

            def message():
                text = mixed_text(rng.randint(1, 300), rng.randrange(1 << 30), words)
                for token in control:
                    text = text.replace(token, "")
                return rng.choice(SPACES) + text + rng.choice(SPACES) if rng.random() < 0.97 else rng.choice(SPACES)

            chats = [conversation(template, words, rng, message) for _ in range(200)]
            found = ours(program, path, template, chats, folder)
            wrong += compare(f"{template}, {path.name}", chats, found, [expected_of(tokenizer, chat) for chat in chats])
            if path.name != "llama3" and path.name != "gpt2":
                continue
            chats = [conversation(template, words, rng, lambda: "".join(rng.choice([*control, "ciao", " ", "\n", "<|"]) for _ in range(6)) + "x")
                     for _ in range(100)]
            chats = [[{**each, "content": "x" + each["content"]} for each in chat] for chat in chats]
            found = ours(program, path, template, chats, folder)
            ids = list(spelled(tokenizer, template, chats))
            wrong += compare(f"{template}, {path.name}, spelled control tokens", chats, found,
                             [(each, targets) for each, (_, targets) in zip(ids, found)])
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
