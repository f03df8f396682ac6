// slices.js: long work on the page's one thread, done a slice at a time, so that keys,
// scrolling and drawing come in between.

// Between two yields, a generator that works for the page looks at so many locks at most.
export const sliceLocks = 4096;

// For so long its steps go on without a pause: half of what one frame has.
const busyMs = 8;

// run does the steps of a generator, and calls done with what they come to and how long
// they took: before it returns, if that is not long. It returns a function that gives the
// work up, null if there is none left.
export function run(steps, done, { now = () => performance.now(), pause = (go) => setTimeout(go) } = {}) {
  let took = 0;
  let given = false;
  const go = () => {
    if (given) return true;
    const began = now();
    let step;
    do step = steps.next(); while (!step.done && now() - began < busyMs);
    took += now() - began;
    if (step.done) done(step.value, took);
    else pause(go);
    return step.done;
  };
  return go() ? null : () => { given = true; };
}

// each visits the numbers below count.
export function* each(count, visit) {
  for (let i = 0; i < count; i++) {
    visit(i);
    if ((i + 1) % sliceLocks === 0) yield;
  }
}

// sorted sorts numbers, or texts, smallest first: slices of them, which are then merged. It
// takes the array that it is given for its work.
export function* sorted(values) {
  const { length } = values;
  for (let from = 0; from < length; from += sliceLocks) {
    const slice = values.slice(from, from + sliceLocks).sort();
    for (let i = 0; i < slice.length; i++) values[from + i] = slice[i];
    yield;
  }
  let [source, target] = [values, values.slice()];
  for (let width = sliceLocks; width < length; width *= 2) {
    for (let from = 0; from < length; from += 2 * width) yield* merge(source, target, from, Math.min(length, from + width), Math.min(length, from + 2 * width));
    [source, target] = [target, source];
  }
  return source;
}

// merge merges [from, middle) and [middle, to) of source, each sorted, into target.
function* merge(source, target, from, middle, to) {
  let [left, right] = [from, middle];
  for (let at = from; at < to; at++) {
    target[at] = right === to || (left < middle && source[left] <= source[right]) ? source[left++] : source[right++];
    if ((at + 1) % sliceLocks === 0) yield;
  }
}
