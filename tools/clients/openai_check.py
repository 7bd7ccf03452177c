"""The openai library against a server of models/tinyworld: python openai_check.py URL/v1

Every check prints a line; exit code 1 if one failed.
"""
import sys

import openai

client = openai.OpenAI(base_url=sys.argv[1], api_key="none", max_retries=0)
model = client.models.list().data[0].id
failed = []


def check(name):
    def run(function):
        try:
            function()
            print(f"ok      {name}")
        except Exception as error:  # a check that throws has failed; the others go on
            failed.append(name)
            print(f"FAILED  {name}: {type(error).__name__}: {error}")

    return run


def expect(condition, *shown):
    if not condition:
        raise AssertionError(" ".join(map(str, shown)) or "not as expected")


PROMPT = "The home of Nora is"
MESSAGES = [{"role": "user", "content": "Hello!"}]


@check("models")
def _():
    expect(client.models.retrieve(model).id == model)


@check("completion: text, usage, finish_reason")
def _():
    answer = client.completions.create(model=model, prompt=PROMPT, max_tokens=5, temperature=0, extra_body={"ignore_eos": True})
    expect(answer.object == "text_completion" and answer.choices[0].finish_reason == "length", answer)
    expect(answer.usage.completion_tokens == 5 and answer.usage.prompt_tokens > 0, answer.usage)
    expect(answer.usage.total_tokens == answer.usage.prompt_tokens + 5, answer.usage)


@check("completion: token ids, lists of texts and of ids, n, in order")
def _():
    one = client.completions.create(model=model, prompt=[10, 20, 30], max_tokens=4, temperature=0)
    expect(one.usage.prompt_tokens == 3, one.usage)
    many = client.completions.create(model=model, prompt=[[10, 20, 30], [11, 21]], max_tokens=4, temperature=0, n=2)
    expect([choice.index for choice in many.choices] == [0, 1, 2, 3], many)
    expect(many.choices[0].text == one.choices[0].text, many)
    texts = client.completions.create(model=model, prompt=[PROMPT, "Once"], max_tokens=4, temperature=0)
    expect(len(texts.choices) == 2, texts)


@check("completion: echo, logprobs")
def _():
    answer = client.completions.create(model=model, prompt=PROMPT, max_tokens=1, temperature=0, echo=True, logprobs=1)
    logprobs = answer.choices[0].logprobs
    expect(answer.choices[0].text.startswith(PROMPT), answer.choices[0].text)
    expect(len(logprobs.token_logprobs) == answer.usage.prompt_tokens + 1 and logprobs.token_logprobs[0] is None, logprobs)
    expect("".join(logprobs.tokens) == answer.choices[0].text, logprobs.tokens)
    expect(logprobs.text_offset[0] == 0 and logprobs.text_offset == sorted(logprobs.text_offset), logprobs.text_offset)
    expect(logprobs.tokens[-1] in logprobs.top_logprobs[-1], logprobs.top_logprobs[-1])


@check("completion: a stream is the whole answer; usage at its end and on every chunk")
def _():
    fields = dict(model=model, prompt=PROMPT, max_tokens=12, temperature=0.7, seed=5)
    whole = client.completions.create(**fields)
    chunks = list(client.completions.create(**fields, stream=True, stream_options={"include_usage": True}))
    expect("".join(c.choices[0].text for c in chunks if c.choices) == whole.choices[0].text, chunks)
    expect(not chunks[-1].choices and chunks[-1].usage == whole.usage, chunks[-1])
    options = {"include_usage": True, "continuous_usage_stats": True}
    counts = [c.usage.completion_tokens for c in client.completions.create(**fields, stream=True, stream_options=options)]
    expect(counts == sorted(counts) and counts[-1] == whole.usage.completion_tokens, counts)


@check("completion: stop strings, and the same seed again")
def _():
    fields = dict(model=model, prompt="1 2 3 4 5 6 7", max_tokens=30, temperature=0)
    text = client.completions.create(**fields).choices[0].text
    stop = text[len(text) // 2 :][:2]
    cut = client.completions.create(**fields, stop=[stop]).choices[0]
    expect(cut.finish_reason == "stop" and cut.text == text[: text.index(stop)], text, cut)
    sampled = [client.completions.create(model=model, prompt=PROMPT, temperature=1, seed=3, max_tokens=9).choices[0].text for _ in "ab"]
    expect(sampled[0] == sampled[1], sampled)


@check("chat: content as text and as parts, usage")
def _():
    whole = client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=12, temperature=0)
    expect(whole.object == "chat.completion" and whole.choices[0].message.role == "assistant", whole)
    parts = [{"role": "user", "content": [{"type": "text", "text": "Hello!"}]}]
    same = client.chat.completions.create(model=model, messages=parts, max_completion_tokens=12, temperature=0)
    expect(same.choices[0].message.content == whole.choices[0].message.content, same)
    expect(same.usage.prompt_tokens == whole.usage.prompt_tokens, same.usage)


@check("chat: a stream is the whole answer, its first delta has the role")
def _():
    fields = dict(model=model, messages=MESSAGES, max_tokens=12, temperature=0)
    whole = client.chat.completions.create(**fields)
    chunks = list(client.chat.completions.create(**fields, stream=True, stream_options={"include_usage": True}))
    expect(chunks[0].choices[0].delta.role == "assistant", chunks[0])
    expect("".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole.choices[0].message.content, chunks)
    reasons = [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason]
    expect(reasons == [whole.choices[0].finish_reason], reasons)
    expect(chunks[-1].usage == whole.usage, chunks[-1])


@check("chat: logprobs")
def _():
    answer = client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=4, temperature=0, logprobs=True, top_logprobs=2)
    content = answer.choices[0].logprobs.content
    expect(len(content) == answer.usage.completion_tokens and len(content[0].top_logprobs) == 2, content)
    expect(content[0].token == content[0].top_logprobs[0].token, content[0])


def refused(kind, word, **fields):
    try:
        client.chat.completions.create(**{"model": model, "messages": MESSAGES, "max_tokens": 4, **fields})
    except kind as error:
        expect(word in str(error), error)
        return
    raise AssertionError(f"{fields}: not refused")


@check("errors: BadRequestError names the field, NotFoundError the model")
def _():
    refused(openai.BadRequestError, "temperature", temperature=-1)
    refused(openai.BadRequestError, "response_format", response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": {}}})
    refused(openai.BadRequestError, "content", messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x/y.png"}}]}])
    refused(openai.NotFoundError, "nobody", model="nobody")
    refused(openai.BadRequestError, "tokens", messages=[{"role": "user", "content": "word " * 5000}])


@check("a stream that is closed early is no trouble for the next request")
def _():
    stream = client.completions.create(model=model, prompt=PROMPT, max_tokens=500, stream=True, extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()
    expect(client.completions.create(model=model, prompt=PROMPT, max_tokens=2).usage.completion_tokens <= 2)


print(f"{len(failed)} failed")
sys.exit(bool(failed))
