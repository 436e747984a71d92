// How dense the points of the map are: contour lines, and the clusters that are named.

import { contours } from "d3-contour";

const SIDE = 128; // cells of the grid along each axis
const REACH = 1.1; // points lie between -1 and 1
const LEVELS = [0.06, 0.15, 0.3, 0.5, 0.75]; // shares of the largest density
const VALLEY = 0.8; // two peaks are one cluster if the way between them is nowhere lower than this share of the lower one
const SMALLEST = 0.005; // share of all points in a cluster that is named, at least

export type Line = [number, number][];

export interface Cluster {
  x: number;
  y: number;
  name: number;
}

const cellOf = (place: number): number => Math.max(0, Math.min(SIDE - 1, Math.floor(((place + REACH) / (2 * REACH)) * SIDE)));
const placeOf = (cell: number): number => (cell / SIDE) * 2 * REACH - REACH;

function blurred(values: Float64Array, radius: number): Float64Array {
  const along = (from: Float64Array, step: number, across: number): Float64Array => {
    const to = new Float64Array(from.length);
    for (let line = 0; line < SIDE; line++) {
      let sum = 0;
      for (let cell = -radius; cell < SIDE; cell++) {
        if (cell + radius < SIDE) sum += from[line * across + (cell + radius) * step]!;
        if (cell - radius - 1 >= 0) sum -= from[line * across + (cell - radius - 1) * step]!;
        if (cell >= 0) to[line * across + cell * step] = sum;
      }
    }
    return to;
  };
  let found = values;
  for (let pass = 0; pass < 3; pass++) found = along(along(found, 1, SIDE), SIDE, 1);
  return found;
}

// The density of some points on a grid, largest 1.
export function density(x: Float32Array, y: Float32Array, rows: Iterable<number>): Float64Array {
  const counts = new Float64Array(SIDE * SIDE);
  let count = 0;
  for (const row of rows) {
    counts[cellOf(y[row]!) * SIDE + cellOf(x[row]!)]!++;
    count++;
  }
  const found = blurred(counts, count > 20000 ? 2 : count > 1000 ? 3 : 4);
  const most = found.reduce((a, b) => Math.max(a, b), 0);
  return most ? found.map((value) => Math.max(0, value / most)) : found;
}

export function contourLines(grid: Float64Array): Line[] {
  const found = contours().size([SIDE, SIDE]).thresholds(LEVELS)(Array.from(grid));
  return found.flatMap((level) => level.coordinates.flatMap((polygon) => polygon.map((ring) => ring.map(([x, y]): [number, number] => [placeOf(x!), placeOf(y!)]))));
}

// The cluster of each cell, -1 for empty ones: cells go uphill to a peak, and peaks without a valley between them are one.
function basins(grid: Float64Array): Int32Array {
  const order = [...grid.keys()].filter((cell) => grid[cell]! > LEVELS[0]! / 2).sort((a, b) => grid[b]! - grid[a]!);
  const of = new Int32Array(grid.length).fill(-1);
  const parent = new Int32Array(grid.length);
  const root = (cell: number): number => {
    while (parent[cell] !== cell) cell = parent[cell] = parent[parent[cell]!]!;
    return cell;
  };
  for (const cell of order) {
    const [column, line] = [cell % SIDE, Math.floor(cell / SIDE)];
    const near = new Set<number>();
    for (let dy = -1; dy <= 1; dy++)
      for (let dx = -1; dx <= 1; dx++) {
        const inside = column + dx >= 0 && column + dx < SIDE && line + dy >= 0 && line + dy < SIDE;
        const other = inside ? of[cell + dy * SIDE + dx]! : -1;
        if (other >= 0) near.add(root(other));
      }
    const peaks = [...near].sort((a, b) => grid[b]! - grid[a]!);
    of[cell] = peaks[0] ?? cell;
    if (!peaks.length) parent[cell] = cell;
    for (const lower of peaks.slice(1)) if (grid[cell]! > VALLEY * grid[lower]!) parent[lower] = peaks[0]!;
  }
  return of.map((peak) => (peak < 0 ? -1 : root(peak)));
}

// The clusters with the most frequent number of their points, at their densest place; a number below 0 does not count.
export function clusters(grid: Float64Array, x: Float32Array, y: Float32Array, rows: number[], numbers: (row: number) => number): Cluster[] {
  const of = basins(grid);
  const members = new Map<number, Map<number, number>>();
  for (const row of rows) {
    const [peak, number] = [of[cellOf(y[row]!) * SIDE + cellOf(x[row]!)]!, numbers(row)];
    if (peak < 0 || number < 0) continue;
    const counts = members.get(peak) ?? new Map<number, number>();
    members.set(peak, counts.set(number, (counts.get(number) ?? 0) + 1));
  }
  const found: Cluster[] = [];
  for (const [peak, counts] of members) {
    const sizes = [...counts.values()];
    if (sizes.reduce((a, b) => a + b, 0) < SMALLEST * rows.length) continue;
    const name = [...counts].reduce((best, entry) => (entry[1] > best[1] ? entry : best))[0];
    found.push({ x: placeOf((peak % SIDE) + 0.5), y: placeOf(Math.floor(peak / SIDE) + 0.5), name });
  }
  return found;
}
