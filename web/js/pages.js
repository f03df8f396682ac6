// pages.js: what the gateway lists, as the page counts with it.

import { read } from "./clock.js";

export const maxPage = 1000;

// A page that is asked for some locks only looks at so many times as many names as it may hold.
export const examinedPerPage = 10;

// page reads a page of the list: {locks, cursor, total}, the cursor empty at the end. A store
// without queues refuses to look for what is waited for: there is none, which queues says.
export async function page(api, { limit = maxPage, cursor = "", total = false, ...query }, signal) {
  try {
    const { sent, body } = await api.listPage({ ...query, limit, cursor, total }, signal);
    return { locks: body.locks.map((lock) => readLock(lock, sent)), cursor: body.next_cursor ?? "", total: body.total, queues: true };
  } catch (error) {
    if (error.code === "unsupported_by_store" && query.filter?.waiting) return { locks: [], cursor: "", total: undefined, queues: false };
    throw error;
  }
}

// one reads a single name as the list would have it: null if it is free or does
// not match. Of all names that begin with it, it is the first.
export async function one(api, { q, filter }, name, signal) {
  try {
    const { sent, body } = await api.listPage({ q, prefix: name, filter, limit: 1, cursor: "" }, signal);
    return body.locks[0]?.name === name ? readLock(body.locks[0], sent) : null;
  } catch (error) {
    if (error.code === "unsupported_by_store" && filter?.waiting) return null;
    throw error;
  }
}

// readLock reads a lock of an answer to a request that was sent at a time, its readMark. waitedMark is since when
// the first of its queue has waited, null where the answer does not say.
export function readLock(lock, sent) {
  return {
    ...lock,
    readMark: sent,
    delayedMark: lock.delayed_ms === undefined ? null : sent + lock.delayed_ms,
    waitedMark: lock.waiting_ms === undefined ? null : sent - lock.waiting_ms,
    holders: lock.holders.map((holder) => read(holder, sent)),
    waiters: (lock.waiters ?? []).map((waiter) => ({ ...waiter, since: sent - waiter.waiting_ms, turn: waiter.estimated_wait_ms === undefined ? null : sent + waiter.estimated_wait_ms })),
  };
}
