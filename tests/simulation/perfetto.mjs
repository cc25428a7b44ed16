// Perfetto's trace processor in a terminal: reads a trace, answers SQL with JSON.
//
//   echo '["select count(*) as slices from slice"]' | node perfetto.mjs VIEWER TRACE
//
// VIEWER is the folder of a built viewer. Its engine_bundle.js is a web worker around trace_processor.wasm; it is given
// the names of a browser that it looks for and is spoken to as the viewer does, in messages of TraceProcessorRpc
// (protos/perfetto/trace_processor/trace_processor.proto), whose field numbers are below.

import { readFileSync } from "node:fs";
import { join } from "node:path";

const APPEND = 1, FINALIZE = 2, QUERY = 3; // methods
const NULL = 1, VARINT = 2, FLOAT = 3, STRING = 4; // types of a cell
const PIECE = 16 << 20; // bytes of a trace in one message, which may have 32 MiB

const [viewer, trace] = process.argv.slice(2);
const port = await start(viewer);
load(readFileSync(trace));
const queries = JSON.parse(readFileSync(0, "utf8"));
process.stdout.write(JSON.stringify(queries.map(query)));

async function start(viewer) {
  const read = (name) => readFileSync(join(viewer, name));
  class XMLHttpRequest {
    open(_, name) { this.name = name; }
    send() { this.response = read(this.name); }
  }
  const browser = {
    self: { location: { href: "", protocol: "", host: "" } },
    WorkerGlobalScope: Object,
    XMLHttpRequest,
    process: undefined, // else it takes itself to be in node
    console: { ...console, log() {}, warn() {} },
  };
  new Function(...Object.keys(browser), read("engine_bundle.js"))(...Object.values(browser));
  const port = { sent: 0, replies: [], postMessage(bytes) { this.replies.push(bytes); } };
  browser.self.onmessage({ data: port });
  await new Promise(setImmediate); // it is ready in the next turn
  return port;
}

function load(bytes) {
  for (let at = 0; at < bytes.length; at += PIECE) {
    for (const reply of send(APPEND, field(101, bytes.subarray(at, at + PIECE)))) failed(reply[201], 2);
  }
  for (const reply of send(FINALIZE)) failed(reply[212], 1);
}

/** Rows as objects by column. */
function query(sql) {
  const rows = [];
  let columns = [], row = [];
  for (const reply of send(QUERY, field(103, field(1, Buffer.from(sql))))) {
    const result = fields(reply[203][0]);
    failed([reply[203][0]], 2, sql);
    columns = columns.concat((result[1] ?? []).map(String));
    for (const cell of (result[3] ?? []).flatMap(cells)) {
      row.push(cell);
      if (row.length === columns.length) rows.push(Object.fromEntries(columns.map((name, i) => [name, row[i]]))), (row = []);
    }
  }
  return rows;
}

/** The values of a CellsBatch: one list of types, and one of the values of each type. */
function cells(bytes) {
  const batch = fields(bytes);
  const integers = varints(batch[2]?.[0] ?? Buffer.alloc(0));
  const floats = batch[3]?.[0] ?? Buffer.alloc(0);
  const strings = String(batch[5]?.[0] ?? "").split("\0");
  let integer = 0, float = 0, string = 0;
  return varints(batch[1]?.[0] ?? Buffer.alloc(0)).map((type) => {
    if (type === NULL) return null;
    if (type === VARINT) return integers[integer++];
    if (type === FLOAT) return floats.readDoubleLE(8 * float++);
    if (type === STRING) return strings[string++];
    throw new Error(`a cell of type ${type}`);
  });
}

function failed(messages, number, what = trace) {
  for (const message of messages ?? []) {
    const error = String(fields(message)[number]?.[0] ?? "");
    if (error) throw new Error(`${what}: ${error}`);
  }
}

/** One request to the module, which answers before it returns: the fields of each reply. */
function send(method, ...args) {
  port.replies = [];
  const message = Buffer.concat([Buffer.from([1 << 3]), varint(port.sent++), Buffer.from([2 << 3, method]), ...args]);
  port.onmessage({ data: new Uint8Array(field(1, message)) });
  const replies = (fields(Buffer.concat(port.replies))[1] ?? []).map(fields);
  for (const reply of replies) if (reply[5]) throw new Error(String(reply[5][0]));
  return replies;
}

// The wire format of protocol buffers (protobuf.dev/programming-guides/encoding).

function varint(value) {
  const bytes = [];
  for (; value > 127; value = Math.floor(value / 128)) bytes.push((value % 128) | 128);
  return Buffer.from([...bytes, value]);
}

function field(number, bytes) {
  return Buffer.concat([varint(number * 8 + 2), varint(bytes.length), bytes]);
}

function readVarint(bytes, at) {
  let value = 0n;
  for (let shift = 0n; ; shift += 7n) {
    const byte = bytes[at++];
    value |= BigInt(byte & 127) << shift;
    if (byte < 128) return [Number(BigInt.asIntN(64, value)), at];
  }
}

function varints(bytes) {
  const values = [];
  for (let at = 0, value; at < bytes.length; values.push(value)) [value, at] = readVarint(bytes, at);
  return values;
}

/** Field number to all its values: numbers, or bytes. */
function fields(bytes) {
  const found = {};
  for (let at = 0; at < bytes.length; ) {
    let key, value;
    [key, at] = readVarint(bytes, at);
    [value, at] = readVarint(bytes, at); // a number, or how many bytes follow
    if (key % 8 === 2) [value, at] = [bytes.subarray(at, at + value), at + value];
    (found[Math.floor(key / 8)] ??= []).push(value);
  }
  return found;
}
