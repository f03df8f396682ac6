-- The verbs that are about a gateway and the partition, not about a name.

-- Returns since when a name is remembered; for ever from now on, if it is not.
local function remembered_since(of)
  local found = attempt('get', prefix .. 'lock:' .. of)
  if not found then
    return math.huge
  end
  local ok, r = pcall(read_record, found)
  return ok and r[BORN] or 0 -- if it can't be read, an operator decides
end

-- Tells of entries. Those that are older than what is remembered of their name, which was
-- evicted or deleted, are dropped: who waits there is not told of, and so asks again.
local function reply_entries(entries, key)
  local of, born, to_the_end, old, dropped = '', 0, false, false, {}
  for i = 1, #entries do -- in order of kind, name and SEQ
    local entry = entries[i]
    if not to_the_end and (of == '' or sub(entry, 1, #of) ~= of) then
      local entry_name = unpack('s', entry, 2)
      of, born, old = sub(entry, 1, #entry_name + 2), remembered_since(entry_name), true
      to_the_end = sub(entries[#entries], 1, #of) == of
    end
    old = old and unpack('>I7', entry, #of + 1) <= born
    if old then
      dropped[#dropped + 1] = entry
    else
      item(ITEM_ENTRY, entry)
    end
  end
  if #dropped > 0 then
    call('zrem', key, spread(dropped))
  end
end

-- Says that a gateway lives, and returns what there is for it, from an entry on and so much
-- as one call may read; from LEASE_ENTRY on, leases alone. The twin of fencing.Beat.
function verbs.heartbeat()
  if skewed then
    return 'clock_skew'
  end
  hear(true)
  local key, after = prefix .. 'gateway:' .. me, sub(op_text, op[OP_SIZE + 1])
  local entries = attempt('zrangebylex', key, after == '' and '-' or '(' .. after, after == LEASE_ENTRY and '(' .. PLACE_ENTRY or '+', 'limit', 0, HEARTBEAT_PAGE)
  if entries.err then -- it is no such set: whoever waits asks again
    call('del', key)
  end
  reply_entries(entries, key)
  flags = #entries == HEARTBEAT_PAGE and flags .. FLAG_MORE or flags
  for _, due_name in ipairs(call('zrangebyscore', prefix .. 'expiry', '-inf', now, 'limit', 0, op[OP_LIMIT])) do
    item(ITEM_DUE, due_name .. '\0')
  end
  return 'ok'
end

-- Tells whether Redis would run what grants: it refuses this where it would refuse
-- that, as a replica, out of memory, unable to persist.
function verbs.check()
  return skewed and 'clock_skew' or 'ok'
end

-- Notes who serves the partition. If that is not who served last, something was lost,
-- or a quarantine turns out to be too short, nothing new is granted for as long as
-- somebody may still believe in a lease that was lost. The twin of fencing.Arrive.
function verbs.arrive()
  if skewed then -- until when would be as wrong as the clock
    return 'clock_skew'
  end
  local a = {unpack(ARRIVAL_FORMAT, op_text, op[OP_SIZE + 1])}
  local g, floor = load_guard(), header[HEADER_FLOOR]
  if (g and g[GUARD_BORN] or 0) ~= a[ARRIVAL_BORN] then -- it is not what the gateway goes by
    return 'conflict'
  end
  if not g then
    guard = GUARD_EMPTY
    g = guard
    g[GUARD_LAYOUT], g[GUARD_PARTITIONS], g[GUARD_BORN] = a[ARRIVAL_LAYOUT], a[ARRIVAL_PARTITIONS], now
  end
  note(g, 0)
  local in_use, longest = max(g[GUARD_TTL], g[GUARD_BEFORE]), a[ARRIVAL_LONGEST]
  local readable, top = pcall(highest) -- while it can't be read nothing is granted
  local behind = readable and floor > top and floor <= now + MAX_FLOOR_LEAD
  local longer = now < g[GUARD_UNTIL] and (longest > in_use or a[ARRIVAL_LATE] == 1) -- than who began the quarantine knew of
  local other = a[ARRIVAL_LOSSLESS] == 0 and g[GUARD_SERVER] ~= a[ARRIVAL_SERVER]
  if a[ARRIVAL_LOST] == 1 or behind or longer or other then
    g[GUARD_UNTIL] = max(g[GUARD_UNTIL], now + min(max(in_use, longest, a[ARRIVAL_LEAST]), a[ARRIVAL_MOST]))
  end
  if a[ARRIVAL_MOST] > 0 then
    g[GUARD_UNTIL] = max(g[GUARD_UNTIL], min(a[ARRIVAL_UNTIL], now + a[ARRIVAL_MOST]))
  end
  note(g, longest)
  g[GUARD_SERVER], guard_changed = a[ARRIVAL_SERVER], true
  if behind then
    counter = floor
  end
  item(ITEM_GUARD, pack(GUARD_FORMAT, spread(g, 1, GUARD_SIZE)))
  return 'ok'
end
