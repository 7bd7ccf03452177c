// Where records come from: the server's live feed, or a file.

// The pieces of a stream's text that end with `end`. A piece may be as long as `most` characters.
export async function* pieces(stream, end, most) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    while (true) {
      const { value, done } = await reader.read();
      if (done) return;
      rest += value;
      let begin = 0;
      for (let at = rest.indexOf(end); at >= 0; at = rest.indexOf(end, begin)) {
        yield rest.slice(begin, at);
        begin = at + end.length;
      }
      rest = rest.slice(begin);
      if (rest.length > most) throw new Error("a line is too long");
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

// The data of server-sent events.
export async function* events(stream) {
  for await (const event of pieces(stream, "\n\n", 1 << 26)) {
    const data = event.split("\n").filter(line => line.startsWith("data:")).map(line => line.slice(5).trimStart());
    if (data.length > 0) yield data.join("\n");
  }
}

export class NeedsKey extends Error {}

let key = sessionStorage.getItem("ladder-key") ?? "";

export function set_key(value) {
  key = value;
  sessionStorage.setItem("ladder-key", value);
}

// A request to this server, with the key. NeedsKey: it wants one, or another one.
export async function ask(path, options = {}) {
  const headers = { ...options.headers };
  if (key !== "") headers.Authorization = `Bearer ${key}`;
  const answer = await fetch(path, { ...options, headers, cache: "no-store" });
  if (answer.status === 401) throw new NeedsKey("the server asks for an API key");
  return answer;
}

// Calls on_line(object) for every line of the live feed, for as long as the connection lives.
export async function follow_live(on_line, on_open, signal) {
  const answer = await ask("window/events", { headers: { Accept: "text/event-stream" }, signal });
  if (!answer.ok) throw new Error(await error_of(answer));
  on_open();
  for await (const data of events(answer.body)) on_line(JSON.parse(data));
}

export async function read_file(file, on_line) {
  let number = 0;
  for await (const line of pieces(file.stream(), "\n", 1 << 26)) {
    ++number;
    try {
      on_line(JSON.parse(line));
    } catch (error) {
      throw new Error(`line ${number}: ${error.message}`);
    }
  }
  if (number === 0) throw new Error("expected a trace of ladder, as --trace writes it");
}

export async function error_of(answer) {
  const text = await answer.text();
  try {
    return JSON.parse(text).error.message;
  } catch {
    return `${answer.status} ${answer.statusText}`;
  }
}
