// A trace in the browser: records as they come (from the server, or from anybody's file), the table of KV blocks at any
// of them, and what is known of each sequence. The format is step6_engine/trace/trace_json.h.

export const FREE = 0, CACHED = 1, HELD = 2, SHARED = 3;
const STATES = { f: FREE, c: CACHED, h: HELD, s: SHARED };

const MOST_RECORDS = 20000;  // older ones are forgotten, a part at a time
const FORGET = 2000;
const MOST_BLOCKS = 1 << 22;

const is_count = value => Number.isSafeInteger(value) && value >= 0;

function check(condition, what) {
  if (!condition) throw new Error(what);
}

function list(record, name, width) {
  const value = record[name] === undefined ? [] : record[name];
  check(Array.isArray(value), `${name}: expected a list`);
  if (width > 0) check(value.every(entry => Array.isArray(entry) && entry.length === width), `${name}: expected lists of ${width}`);
  return value;
}

export class Trace {
  constructor(header) {
    check(header !== null && typeof header === "object" && header.ladder_trace === 1,
          "expected a trace of ladder (version 1), as --trace writes it");
    for (const name of ["num_blocks", "block_size", "max_num_seqs", "max_num_batched_tokens"])
      check(is_count(header[name]) && header[name] > 0, `${name}: expected a number above 0`);
    check(header.num_blocks <= MOST_BLOCKS, `this page shows at most ${MOST_BLOCKS} blocks`);
    this.header = header;
    this.first = 0;          // the place of records[0]; places are never used twice
    this.records = [];
    this.sequences = new Map();
    this.preemptions = 0;    // of all records so far
    this.truncated = false;
    // The table after some of the records, to begin with: place -> states.
    this.key_every = Math.max(256, Math.ceil(header.num_blocks / 64));
    this.keys = [{ place: -1, states: new Uint8Array(header.num_blocks) }];
    this.newest = new Uint8Array(header.num_blocks);
    this.cursor = { place: -1, states: new Uint8Array(header.num_blocks) };
  }

  get end() { return this.first + this.records.length; }
  at(place) { return this.records[place - this.first]; }

  add(line) {
    if (line.truncated === true) {
      this.truncated = true;
      return;
    }
    const record = {
      restart: line.restart === true,
      step: line.step === undefined ? -1 : line.step,
      begin: line.begin ?? 0, seconds: line.seconds ?? 0, execute: line.execute_seconds ?? 0,
      new_tokens: line.new_tokens ?? 0, num_waiting: line.num_waiting ?? 0,
      arrived: list(line, "arrived", 5), admitted: list(line, "admitted", 2), batch: list(line, "batch", 4),
      queue: list(line, "queue", 0), preempted: list(line, "preempted", 0), ended: list(line, "ended", 2),
      blocks: list(line, "blocks", 3), evicted: list(line, "evicted", 2),
    };
    for (const name of ["begin", "seconds", "execute"])
      check(Number.isFinite(record[name]) && record[name] >= 0, `${name}: expected seconds`);
    check(is_count(record.new_tokens) && is_count(record.num_waiting) && (record.step === -1 || is_count(record.step)),
          "expected counts");
    check(record.batch.every(([id, phase, tokens, computed]) =>
            is_count(id) && (phase === "p" || phase === "d") && is_count(tokens) && is_count(computed)), "batch");
    check([...record.queue, ...record.preempted].every(is_count), "queue, preempted: expected numbers of sequences");
    check(record.admitted.every(([id, cached]) => is_count(id) && is_count(cached)), "admitted");
    for (const range of [...record.blocks, ...record.evicted])
      check(is_count(range[0]) && is_count(range[1]) && range[0] + range[1] <= this.header.num_blocks,
            "blocks: expected a range of the table");
    check(record.blocks.every(run => Object.hasOwn(STATES, run[2])), "blocks: expected a state f, c, h or s");

    const place = this.end;
    for (const [id, request, completion, prompt, arrival] of record.arrived) {
      check(is_count(id) && typeof request === "string" && is_count(completion) && is_count(prompt), "arrived");
      this.sequences.set(id, { id, request, completion, prompt, arrival: Number(arrival) || 0, cached: 0, place,
                               first: null, reason: "", ended: null, preemptions: 0 });
    }
    for (const [id, cached] of record.admitted) {
      const sequence = this.sequences.get(id);
      if (sequence !== undefined && sequence.first === null) {
        sequence.first = record.begin;
        sequence.cached = cached;
      }
    }
    for (const id of record.preempted) {
      const sequence = this.sequences.get(id);
      if (sequence !== undefined) ++sequence.preemptions;
    }
    for (const [id, reason] of record.ended) {
      const sequence = this.sequences.get(id);
      if (sequence === undefined) continue;
      sequence.reason = String(reason);
      sequence.ended = record.begin + record.seconds;
    }
    this.preemptions += record.preempted.length;
    record.preemptions = this.preemptions;
    record.tokens = record.batch.reduce((sum, work) => sum + work[2], 0);
    record.prefill = record.batch.reduce((sum, work) => sum + (work[1] === "p" ? work[2] : 0), 0);
    this.records.push(record);
    this.apply(record, this.newest);
    if ((place + 1) % this.key_every === 0) this.keys.push({ place, states: this.newest.slice() });
    if (this.records.length > MOST_RECORDS) this.forget();
  }

  apply(record, states) {
    if (record.restart) states.fill(FREE);
    for (const [first, count, state] of record.blocks) states.fill(STATES[state], first, first + count);
  }

  forget() {
    const states = this.states(this.first + FORGET - 1).slice();
    this.records.splice(0, FORGET);
    this.first += FORGET;
    this.keys = this.keys.filter(key => key.place >= this.first);
    this.keys.unshift({ place: this.first - 1, states });
    for (const [id, sequence] of this.sequences)
      if (sequence.ended !== null && sequence.place < this.first && sequence.ended < this.records[0].begin)
        this.sequences.delete(id);
  }

  // The table after the record of this place. The caller must not keep it.
  states(place) {
    let from = this.cursor;
    if (from.place > place || from.place < this.first - 1 || place - from.place > this.key_every) {
      const key = this.keys.findLast(one => one.place <= place);
      from.states.set(key.states);
      from.place = key.place;
    }
    while (from.place < place) this.apply(this.at(++from.place), from.states);
    return from.states;
  }

  // New tokens per second over the last second before the end of this record.
  rate(place) {
    const last = this.at(place);
    const until = last.begin + last.seconds;
    let tokens = 0, since = until;
    for (let i = place; i >= this.first; --i) {
      const record = this.at(i);
      if (i < place && (record.restart || record.begin + record.seconds < until - 1)) break;
      tokens += record.new_tokens;
      since = record.begin;
    }
    return until > since ? tokens / (until - since) : 0;
  }

  // The steps that a sequence took part in, by place, in the last `most` records before `place`.
  steps_of(id, place, most) {
    const steps = [];
    for (let i = Math.max(this.first, place - most + 1); i <= place; ++i) {
      const work = this.at(i).batch.find(one => one[0] === id);
      steps.push(work === undefined ? null : work);
    }
    return steps;
  }

  name(id) {
    const sequence = this.sequences.get(id);
    if (sequence === undefined) return `sequence ${id}`;
    return sequence.completion > 0 ? `${sequence.request} [${sequence.completion}]` : sequence.request;
  }
}
