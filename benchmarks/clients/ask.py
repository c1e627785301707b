"""Asks a server of OpenAI's API by one of the Python clients: a prompt a line, an answer a line.

    python ask.py openai http://localhost:8000/v1 KEY MODEL < prompts.jsonl

Knows nothing of RAGCache. Needs the client that it is to be: openai, langchain-openai,
llama-index-llms-openai-like or litellm.
"""

import json
import os
import sys
import time

SYSTEM = "You answer questions from the documents you are given."
MOST_TOKENS = 8


def openai(url, key, model):
    from openai import OpenAI

    client = OpenAI(base_url=url, api_key=key)

    def ask(prompt):
        pieces = client.chat.completions.create(
            model=model,
            messages=[{"role": "system", "content": SYSTEM}, {"role": "user", "content": prompt}],
            max_tokens=MOST_TOKENS,
            temperature=0,
            stream=True,
        )
        for piece in pieces:
            if piece.choices:
                yield piece.choices[0].delta.content or ""

    return ask


def langchain(url, key, model):
    from langchain_openai import ChatOpenAI

    llm = ChatOpenAI(base_url=url, api_key=key, model=model, max_tokens=MOST_TOKENS, temperature=0)

    def ask(prompt):
        for piece in llm.stream([("system", SYSTEM), ("user", prompt)]):
            yield piece.text if isinstance(piece.text, str) else piece.text()

    return ask


def llamaindex(url, key, model):
    from llama_index.core.llms import ChatMessage
    from llama_index.llms.openai_like import OpenAILike

    llm = OpenAILike(
        api_base=url,
        api_key=key,
        model=model,
        is_chat_model=True,
        max_tokens=MOST_TOKENS,
        temperature=0,
    )

    def ask(prompt):
        messages = [ChatMessage(role="system", content=SYSTEM), ChatMessage(content=prompt)]
        for piece in llm.stream_chat(messages):
            yield piece.delta or ""

    return ask


def litellm(url, key, model):
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it would ask the internet for prices
    from litellm import completion

    def ask(prompt):
        pieces = completion(
            model=f"openai/{model}",
            api_base=url,
            api_key=key,
            messages=[{"role": "system", "content": SYSTEM}, {"role": "user", "content": prompt}],
            max_tokens=MOST_TOKENS,
            temperature=0,
            stream=True,
        )
        for piece in pieces:
            yield piece.choices[0].delta.content or ""

    return ask


CLIENTS = {"openai": openai, "langchain": langchain, "llamaindex": llamaindex, "litellm": litellm}


def main(name, url, key, model):
    ask = CLIENTS[name](url, key, model)
    print("ready", flush=True)
    for line in sys.stdin:
        began_s, first_s, text = time.perf_counter(), None, ""
        for piece in ask(json.loads(line)):
            if piece and first_s is None:
                first_s = time.perf_counter() - began_s
            text += piece
        print(json.dumps({"ttft_s": first_s, "text": text}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
