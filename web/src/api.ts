// What the server answers, and how to ask it.

// A class keeps its key and its colour, whatever it is called.
export interface ClassOf {
  name: string;
  key: string | null;
  colour: number;
}

export interface Facts {
  name: string;
  key: string;
  examples: number;
  labelled: number;
  classes: ClassOf[];
  pictures: boolean;
  missing: string;
  map: string;
  method: string;
  trust: string;
  labels_file: string;
  changes: number;
  last: number;
  learning: boolean;
  who: string;
  outcome: Outcome | null;
}

export type ShortFacts = Pick<Facts, "labelled" | "classes" | "changes" | "last">;

export interface Example {
  row: number;
  name: string;
  label: string | null;
  predicted: string | null;
  confidence: number;
  values: [string, string][];
  distance?: number;
  why?: string;
}

export interface Outcome {
  judged: { labels: number; before: number | null; after: number | null; why: string; unused: string[] };
  before: Record<string, number> | null;
  after: Record<string, number> | null;
  changed: number;
  rows: number[];
  from: string[];
  run: string;
}

export interface Columns {
  x: Float32Array;
  y: Float32Array;
  confidence: Float32Array;
  label: Int32Array;
  predicted: Int32Array;
}

// What the server answers in place of what was asked for. "replaced": another file is where the labels were.
export class Refused extends Error {
  constructor(
    why: string,
    readonly status: number,
    readonly replaced = false,
  ) {
    super(why);
  }
}

async function answer<T>(asked: Promise<Response>): Promise<T> {
  const response = await asked;
  if (response.ok) return (await response.json()) as T;
  const text = await response.text();
  let why = { error: text, replaced: false };
  try {
    why = JSON.parse(text) as typeof why;
  } catch {
    // the answer is plain text
  }
  throw new Refused(why.error, response.status, why.replaced);
}

export const get = <T>(path: string): Promise<T> => answer<T>(fetch(path));

// The server asks for a header that a form of another site cannot set.
const send = (path: string, type: string, body: BodyInit): Promise<Response> =>
  fetch(path, { method: "POST", headers: { "Content-Type": type, "X-Semimetric": "page" }, body });

const sendJson = (path: string, body: unknown): Promise<Response> => send(path, "application/json", JSON.stringify(body));

export const post = <T>(path: string, body: unknown): Promise<T> => answer<T>(sendJson(path, body));

export const upload = (file: Blob): Promise<Example[]> => answer<Example[]>(send("api/search", "application/octet-stream", file));

export async function columns(count: number): Promise<Columns> {
  const buffer = await (await fetch("api/points")).arrayBuffer();
  const part = (place: number): [ArrayBuffer, number, number] => [buffer, 4 * place * count, count];
  return {
    x: new Float32Array(...part(0)),
    y: new Float32Array(...part(1)),
    confidence: new Float32Array(...part(2)),
    label: new Int32Array(...part(3)),
    predicted: new Int32Array(...part(4)),
  };
}

export async function saveSelection(rows: number[]): Promise<void> {
  const response = await sendJson("api/export", { rows });
  const link = document.createElement("a");
  link.href = URL.createObjectURL(await response.blob());
  link.download = "selection.csv";
  link.click();
  URL.revokeObjectURL(link.href);
}
