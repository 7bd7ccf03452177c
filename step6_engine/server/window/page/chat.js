// The chat. What a model writes is text: it is only ever set as textContent.
import { ask, error_of, events, NeedsKey } from "./feed.js";

const by_id = id => document.getElementById(id);

let model = "";
let messages = [];
let with_template = true;  // else the prompt alone is continued
let running = null;        // the AbortController of the answer that is coming

export async function find_model() {
  const answer = await ask("v1/models");
  if (!answer.ok) throw new Error(await error_of(answer));
  const list = await answer.json();
  model = list?.data?.[0]?.id ?? "";
  by_id("model").textContent = model;
}

function show(role, text) {
  const line = document.createElement("p");
  line.className = role;
  line.textContent = text;
  by_id("messages").append(line);
  by_id("messages").scrollTop = by_id("messages").scrollHeight;
  return line;
}

function note(text) {
  const line = document.createElement("small");
  line.textContent = text;
  by_id("messages").append(line);
}

function show_error(text) {
  by_id("chat-error").textContent = text;
  by_id("chat-error").hidden = text === "";
}

function body() {
  const common = { model, stream: true, stream_options: { include_usage: true },
                   temperature: Number(by_id("temperature").value) };
  const most = Math.max(1, Math.floor(Number(by_id("max-tokens").value) || 128));
  return with_template ? { ...common, messages, max_completion_tokens: most }
                       : { ...common, prompt: messages.at(-1).content, max_tokens: most };
}

async function request(signal) {
  const options = { method: "POST", headers: { "Content-Type": "application/json" }, signal };
  let answer = await ask(with_template ? "v1/chat/completions" : "v1/completions", { ...options, body: JSON.stringify(body()) });
  if (answer.ok || !with_template) return answer;
  // A model without a chat template continues text.
  const message = await error_of(answer);
  if (answer.status !== 404 && !/template/i.test(message)) throw new Error(message);
  with_template = false;
  by_id("chat-kind").textContent = "this model has no chat template: it continues your text";
  return ask("v1/completions", { ...options, body: JSON.stringify(body()) });
}

async function send() {
  const text = by_id("prompt").value;
  if (running !== null || text.trim() === "") return;
  show_error("");
  by_id("prompt").value = "";
  messages.push({ role: "user", content: text });
  show("user", text);
  const line = show("assistant", "");
  running = new AbortController();
  by_id("send").textContent = "Stop";
  let content = "", usage = null;
  const began = performance.now();
  try {
    const answer = await request(running.signal);
    if (!answer.ok) throw new Error(await error_of(answer));
    for await (const data of events(answer.body)) {
      if (data === "[DONE]") break;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Error(chunk.error.message);
      if (chunk.usage) usage = chunk.usage;
      const choice = chunk.choices?.[0];
      const piece = choice?.delta?.content ?? choice?.text ?? "";
      if (piece === "") continue;
      content += piece;
      line.textContent = content;
      by_id("messages").scrollTop = by_id("messages").scrollHeight;
    }
  } catch (error) {
    if (error.name !== "AbortError") show_error(error.message);
    if (error instanceof NeedsKey) by_id("key-form").hidden = false;
  }
  running = null;
  by_id("send").textContent = "Send";
  if (content === "") {
    line.remove();
    messages.pop();
    by_id("prompt").value ||= text;
    return;
  }
  messages.push({ role: "assistant", content });
  if (usage !== null)
    note(`${usage.prompt_tokens} + ${usage.completion_tokens} tokens, ${((performance.now() - began) / 1000).toFixed(2)} s`);
}

export function start_chat() {
  by_id("chat-form").addEventListener("submit", event => {
    event.preventDefault();
    if (running !== null) running.abort();
    else send();
  });
  by_id("prompt").addEventListener("keydown", event => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  });
  by_id("forget").addEventListener("click", () => {
    running?.abort();
    messages = [];
    by_id("messages").replaceChildren();
    show_error("");
    by_id("prompt").focus();
  });
}
