// One moment of a trace, drawn. Everything that comes from a trace is set as text.
import { CACHED, FREE, HELD, SHARED } from "./trace.js";

const by_id = id => document.getElementById(id);
const color = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// A canvas as large as it is shown, in CSS pixels from here on.
function prepare(canvas, height) {
  const ratio = window.devicePixelRatio || 1;
  const width = canvas.clientWidth;
  if (height !== undefined) canvas.style.height = `${height}px`;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round((height ?? canvas.clientHeight) * ratio);
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  return [context, width, height ?? canvas.clientHeight];
}

export function seconds_text(seconds) {
  if (seconds >= 1) return `${seconds.toFixed(2)} s`;
  return seconds >= 1e-3 ? `${(seconds * 1e3).toFixed(2)} ms` : `${(seconds * 1e6).toFixed(0)} µs`;
}

export function draw_figures(trace, place) {
  const record = trace.at(place);
  const idle = record.step < 0;
  const states = trace.states(place);
  let in_use = 0;
  for (const state of states) in_use += state >= HELD;
  const figures = {
    step: idle ? "at rest" : String(record.step), seconds: idle ? "–" : seconds_text(record.seconds),
    rate: trace.rate(place).toFixed(0), tokens: String(record.tokens), running: String(record.batch.length),
    waiting: String(record.num_waiting), kv: `${(100 * in_use / states.length).toFixed(1)} %`,
    preemptions: String(record.preemptions),
  };
  for (const [name, text] of Object.entries(figures)) by_id(`figure-${name}`).textContent = text;
}

const BAR = 5;  // a step in the timeline, CSS pixels

// Where the timeline begins, so that `place` is in it.
function timeline_begin(trace, place, width) {
  const count = Math.max(1, Math.floor(width / BAR));
  return Math.max(trace.first, Math.min(place - Math.floor(count * 0.8), trace.end - count));
}

export function place_in_timeline(trace, place, x, width) {
  const at = timeline_begin(trace, place, width) + Math.floor(x / BAR);
  return at < trace.end ? at : trace.end - 1;
}

export function draw_timeline(trace, place) {
  const [context, width, height] = prepare(by_id("timeline"), 96);
  const begin = timeline_begin(trace, place, width);
  const end = Math.min(trace.end, begin + Math.ceil(width / BAR));
  let most = 1, most_waiting = 1;
  for (let i = begin; i < end; ++i) {
    most = Math.max(most, trace.at(i).tokens);
    most_waiting = Math.max(most_waiting, trace.at(i).num_waiting);
  }
  const top = 12, full = height - top - 2;
  const colors = { prefill: color("--prefill"), decode: color("--decode"), bad: color("--bad"), ink: color("--ink"), soft: color("--soft") };
  for (let i = begin; i < end; ++i) {
    const record = trace.at(i), x = (i - begin) * BAR;
    const decode = full * (record.tokens - record.prefill) / most, prefill = full * record.prefill / most;
    context.fillStyle = colors.decode;
    context.fillRect(x, height - decode, BAR - 1, decode);
    context.fillStyle = colors.prefill;
    context.fillRect(x, height - decode - prefill, BAR - 1, prefill);
    if (record.preempted.length > 0) {
      context.fillStyle = colors.bad;
      context.beginPath();
      context.arc(x + BAR / 2 - 0.5, 5, 2.5, 0, 7);
      context.fill();
    }
    if (i === place) {
      context.strokeStyle = colors.ink;
      context.lineWidth = 1.5;
      context.strokeRect(x - 1, 1, BAR + 1, height - 2);
    }
  }
  context.fillStyle = colors.soft;
  context.font = "11px system-ui, sans-serif";
  context.fillText(`${most} tokens`, 4, 10);
  by_id("timeline").setAttribute("aria-label", `the steps ${trace.at(begin).step} to ${trace.at(end - 1).step}: at most ${most} tokens computed in one, at most ${most_waiting} sequences waiting`);
}

function segment(share, kind) {
  const part = document.createElement("span");
  part.className = kind;
  part.style.width = `${(100 * share).toFixed(3)}%`;
  return part;
}

export function draw_batch(trace, place, followed, follow) {
  const record = trace.at(place);
  const cached = new Map(record.admitted);
  by_id("batch-note").textContent = record.step < 0 ? "the engine is at rest"
    : `${record.batch.length} of at most ${trace.header.max_num_seqs} sequences, ${record.prefill} tokens of prompts and ${record.tokens - record.prefill} decodes, of at most ${trace.header.max_num_batched_tokens}`;
  const budget = Math.max(trace.header.max_num_batched_tokens, record.tokens);
  by_id("composition").replaceChildren(...record.batch.slice(0, 512).map(([id, phase, tokens]) => {
    const part = segment(tokens / budget, phase === "p" ? "s-prefill" : "s-decode");
    part.title = `${trace.name(id)}: ${tokens}`;
    return part;
  }));
  by_id("composition").setAttribute("aria-label", `${record.prefill} tokens of prompts and ${record.tokens - record.prefill} decodes in this step`);

  const rows = record.batch.slice(0, 512).map(([id, phase, tokens, computed]) => {
    const sequence = trace.sequences.get(id);
    const row = document.createElement("button");
    row.type = "button";
    row.className = id === followed ? "sequence followed" : "sequence";
    row.addEventListener("click", () => follow(id));
    const name = document.createElement("span");
    name.className = "name";
    name.textContent = trace.name(id);
    const bar = document.createElement("span");
    bar.className = "bar";
    const whole = Math.max(sequence?.prompt ?? 0, computed + tokens, 1);
    const from_cache = Math.min(cached.get(id) ?? sequence?.cached ?? 0, computed);
    const seen = Math.max(tokens, whole / 25);  // one token of many would not be seen
    const all = Math.max(whole, computed + seen);
    bar.append(segment(from_cache / all, "s-cached"), segment((computed - from_cache) / all, "s-done"),
               segment(seen / all, phase === "p" ? "s-prefill" : "s-decode"));
    const what = document.createElement("span");
    what.className = "what";
    what.textContent = phase === "p" ? `${computed + tokens}/${whole} +${tokens}` : `${computed} +${tokens}`;
    row.append(name, bar, what);
    row.setAttribute("aria-label", `${trace.name(id)}: ${tokens} tokens of ${phase === "p" ? "a prompt" : "decoding"} after ${computed}` + (cached.has(id) ? `, ${cached.get(id)} from the cache` : ""));
    return row;
  });
  const focused = document.activeElement?.parentElement === by_id("batch") ? [...by_id("batch").children].indexOf(document.activeElement) : -1;
  by_id("batch").replaceChildren(...rows);
  if (focused >= 0) by_id("batch").children[Math.min(focused, rows.length - 1)]?.focus();
}

function chip(trace, id, kind, text, followed, follow) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = `chip ${kind}` + (id === followed ? " followed" : "");
  button.textContent = text;
  button.addEventListener("click", () => follow(id));
  return button;
}

export function draw_queue(trace, place, followed, follow) {
  const record = trace.at(place);
  by_id("queue-note").textContent = record.num_waiting === 0 ? "nobody waits" : `${record.num_waiting} waiting, the first of them first`;
  by_id("queue").replaceChildren(...record.queue.map(id => chip(trace, id, "", trace.name(id), followed, follow)));
  if (record.num_waiting > record.queue.length)
    by_id("queue").append(`and ${record.num_waiting - record.queue.length} more`);
  by_id("events").replaceChildren(
    ...record.admitted.map(([id, cached]) => chip(trace, id, "admitted", `${trace.name(id)} begins` + (cached > 0 ? `, ${cached} tokens cached` : ""), followed, follow)),
    ...record.preempted.map(id => chip(trace, id, "preempted", `${trace.name(id)} preempted`, followed, follow)),
    ...record.ended.map(([id, reason]) => chip(trace, id, "ended", `${trace.name(id)} ended: ${reason}`, followed, follow)));
}

export function draw_follow(trace, place, id) {
  by_id("follow").hidden = id === null;
  if (id === null) return;
  const sequence = trace.sequences.get(id), record = trace.at(place);
  by_id("follow-name").textContent = trace.name(id);
  const now = record.begin + record.seconds;
  const work = record.batch.find(one => one[0] === id);
  const parts = [];
  if (sequence !== undefined) {
    parts.push(`${sequence.prompt} prompt tokens`);
    if (sequence.first !== null && sequence.first <= now)
      parts.push(`waited ${seconds_text(Math.max(0, sequence.first - sequence.arrival))}`, `${sequence.cached} from the cache`);
    if (sequence.preemptions > 0) parts.push(`preempted ${sequence.preemptions} times`);
  }
  if (sequence?.ended != null && sequence.ended <= now) parts.push(`ended (${sequence.reason}) at ${seconds_text(sequence.ended)}`);
  else if (work !== undefined)
    parts.push(work[1] === "p" ? `now computes ${work[2]} tokens of its prompt after ${work[3]}` : `now decodes its token ${work[3] + 1}`);
  else if (record.queue.includes(id)) parts.push(`now waits, ${record.queue.indexOf(id) + 1}. in the queue`);
  else parts.push("not in this step");
  by_id("follow-text").textContent = parts.join(" · ");

  const [context, width, height] = prepare(by_id("life"), 56);
  const count = Math.floor(width / BAR);
  const steps = trace.steps_of(id, place, count);
  const most = Math.max(1, ...steps.map(one => one === null ? 0 : one[2]));
  const colors = { p: color("--prefill"), d: color("--decode") };
  steps.forEach((one, i) => {
    if (one === null) return;
    const tall = Math.max(4, (height - 4) * one[2] / most);
    context.fillStyle = colors[one[1]];
    context.fillRect(i * BAR, height - tall, BAR - 1, tall);
  });
}

// As large as they fit; at least two pixels each, so of very large tables a cell is several blocks: then it shows the
// one that is most in use.
export function draw_blocks(trace, place) {
  const states = trace.states(place), record = trace.at(place);
  const counts = [0, 0, 0, 0];
  for (const state of states) ++counts[state];
  const evicted = new Uint8Array(states.length);
  let num_evicted = 0;
  for (const [first, count] of record.evicted) {
    evicted.fill(1, first, first + count);
    num_evicted += count;
  }
  for (const [name, state] of [["free", FREE], ["cached", CACHED], ["held", HELD], ["shared", SHARED]])
    by_id(`count-${name}`).textContent = String(counts[state]);
  by_id("count-evicted").textContent = String(num_evicted);

  const canvas = by_id("blocks");
  const width = canvas.clientWidth || 300;
  let per_cell = 1;
  const tall = 360;  // at most, CSS pixels
  while (width * tall / Math.ceil(states.length / per_cell) < 9) per_cell *= 2;
  const cells = Math.ceil(states.length / per_cell);
  const size = Math.max(3, Math.min(18, Math.floor(Math.sqrt(width * Math.min(tall, 200) / cells))));
  const columns = Math.max(1, Math.floor(width / size));
  const rows = Math.ceil(cells / columns);
  by_id("blocks-note").textContent = `${states.length} blocks of ${trace.header.block_size} tokens` + (per_cell > 1 ? `, ${per_cell} to a cell` : "");
  const [context] = prepare(canvas, rows * size);
  const colors = [color("--b-free"), color("--b-cached"), color("--b-held"), color("--b-shared")];
  const gap = size > 5 ? 1.5 : size > 3 ? 1 : 0.5;
  const red = color("--b-evicted");
  for (let cell = 0; cell < cells; ++cell) {
    let state = FREE, was_evicted = false;
    const end = Math.min(states.length, (cell + 1) * per_cell);
    for (let i = cell * per_cell; i < end; ++i) {
      state = Math.max(state, states[i]);
      was_evicted ||= evicted[i] === 1;
    }
    const x = (cell % columns) * size, y = Math.floor(cell / columns) * size;
    context.fillStyle = was_evicted ? red : colors[state];
    context.fillRect(x, y, size - gap, size - gap);
    if (was_evicted && size > 6 && state !== FREE) {
      context.fillStyle = colors[state];
      context.fillRect(x + 2.5, y + 2.5, size - gap - 5, size - gap - 5);
    }
  }
  canvas.setAttribute("aria-label", `${states.length} KV blocks: ${counts[HELD]} held, ${counts[SHARED]} shared, ${counts[CACHED]} cached, ${counts[FREE]} free, ${num_evicted} evicted in this step`);
}
