-- What is shown of a name, and the verbs that only read. A verb returns a code.

local verbs = {} -- spelled as in fencing.Step

-- Returns the holders that ran out and nobody has noticed, the most that ended last.
local function over(most)
  if record[HOLDERS] > 1 then
    return holders_of(call('zrevrangebyscore', prefix .. 'until:' .. name, now, 0, 'limit', 0, most))
  end
  return {sole_holder and sole_holder[PROVISIONAL] == 0 and not live(sole_holder) and sole_holder or nil}
end

-- Adds the live holders of several, those first that end first and after them
-- provisional ones, at most most, and returns how many there are. The twin of
-- Record.live.
local function view_many(most)
  local key, ids = prefix .. 'until:' .. name, {}
  local live_count, live_ids = call('zcount', key, fmt('(%d', now), '+inf'), {}
  for id, g in pairs(gateway_counts or {}) do
    if g.leases > 0 and alive(id) then
      live_ids[#live_ids + 1] = id
      live_count = live_count + g.leases
    end
  end
  ids = call('zrangebyscore', key, fmt('(%d', now), '+inf', 'limit', 0, most)
  sort(live_ids)
  for _, id in ipairs(live_ids) do
    if #ids < most then
      for _, lease in ipairs(call('zrangebyscore', key, unconfirmed_score(id), unconfirmed_score(id), 'limit', 0, most - #ids)) do
        ids[#ids + 1] = lease
      end
    end
  end
  for _, stored_lease in ipairs(holders_stored(ids)) do
    item(ITEM_HOLDER, stored_lease)
  end
  return live_count
end

-- Adds until when nobody is granted the name, if that is so. Leases count whose end nobody has
-- noticed: of many those that ended last. The twin of Record.delayedUntil.
function delay.view()
  local holders, till = delay.read()
  for _, h in ipairs(holders > 0 and over(MAX_HOLDERS_SHOWN) or {}) do
    if h[LOCK_DELAY] > 0 and out_of_time(h) ~= 'released' then
      till = max(till, delay.after(h, h[EXPIRES_AT]))
    end
  end
  if till > now then
    item(ITEM_DELAY, pack('>I7', min(till, now + MAX_LOCK_DELAY)))
  end
end

-- Adds the public view of the name, with at most most of its holders. The twin of
-- Record.view.
local function view(most)
  if not record or forgotten() then
    return
  end
  local at, holders, waiting = #out + 2, 0, 0
  item(ITEM_VIEW, '')
  if gateway_counts then
    read_signs(gateway_counts)
    for id, g in pairs(gateway_counts) do
      waiting = waiting + (alive(id) and g.places or 0)
    end
  end
  if sole_holder and (sole_holder[PROVISIONAL] == 1 and alive(sole_holder[GATEWAY]) or sole_holder[PROVISIONAL] == 0 and live(sole_holder)) then
    holders = 1
    item(ITEM_HOLDER, sole_holder[LEASE_TEXT])
  elseif record[HOLDERS] > 1 then
    holders = view_many(most)
  end
  if record[DELAY] ~= '' then
    delay.view()
  end
  out[at] = pack(VIEW_FORMAT, record[LAST_TOKEN], record[HIGHEST_ADMITTED], holders, waiting)
end

-- Adds the first of the waiters of live gateways to the view. Many of dead ones before
-- them are not looked through: the next step takes them out.
local function view_waiters()
  local room, from = MAX_WAITERS_SHOWN, 0
  while record and room > 0 and from < min(record[QUEUED], 10 * MAX_WAITERS_SHOWN) do
    local leases = call('zrange', prefix .. 'queue:' .. name, from, from + MAX_WAITERS_SHOWN - 1)
    for _, place in ipairs(call('hmget', prefix .. 'places:' .. name, spread(leases))) do
      if room > 0 and alive(read_lease(place)[GATEWAY]) then
        item(ITEM_WAITER, place)
        room = room - 1
      end
    end
    from = from + MAX_WAITERS_SHOWN
  end
end

function verbs.list()
  view(op[OP_LIMIT])
  if op[OP_WAITS] == 1 then
    view_waiters()
  end
  return 'ok'
end

-- Adds how the last leases ended, oldest first, those included that ran out and nobody has
-- noticed.
local function view_past()
  if not record or forgotten() then
    return
  end
  for _, entry in ipairs(call('lrange', prefix .. 'history:' .. name, -MAX_HISTORY, -1)) do
    if end_acquired_at(entry) >= record[BORN] then -- others are of before the name was forgotten
      item(ITEM_END, entry)
    end
  end
  for _, h in ipairs(over(MAX_HISTORY)) do
    local reason, why = out_of_time(h)
    item(ITEM_END, pack_end(reason, h[EXPIRES_AT], h, why))
  end
end

-- Answers with who holds the name and who held it. The twin of step.history.
function verbs.history()
  view(op[OP_LIMIT])
  view_past()
  return 'ok'
end

function verbs.inspect()
  view(op[OP_LIMIT])
  view_waiters()
  view_past()
  return 'ok'
end
