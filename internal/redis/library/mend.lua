-- What is done when an operation has broken off: a key of its name was evicted,
-- deleted, or is not what it has to be. What the others have is put in order, so that
-- the operation can be carried out after all.
--
-- The leases of several holders are in one key, and the places in one key: what stands
-- beside them, and what heartbeats tell of them, is made anew from the leases; the places are forgotten, and those who wait
-- ask again, for heartbeats do not tell of them any more. Leases that can't be read are never taken for ended: that is told, and an
-- operator decides (docs/failures.md). It is the one thing here that takes time in
-- proportion to how many hold the name or wait for it.

-- Returns the fields of a hash and reads its leases; nil if one can't be read.
local function leases_in(key)
  local found, all = attempt('hgetall', key), {}
  if found.err then
    return nil
  end
  for i = 2, #found, 2 do
    local ok, h = pcall(read_lease, found[i])
    if not ok or h[LEASE] ~= found[i - 1] then
      return nil
    end
    all[#all + 1] = h
  end
  return all
end

-- Returns the gateways that may have something on the name, as keys.
local function all_gateways()
  local ids = {[me] = true}
  for id in pairs(gateway_counts or {}) do
    ids[id] = true
  end
  for _, id in ipairs(call('hkeys', prefix .. 'gateways')) do
    if #id == #me then
      ids[id] = true
    end
  end
  return ids
end

-- Forgets what there is of a kind for gateways on the name.
local function forget_entries(kind)
  for id in pairs(all_gateways()) do
    call('zremrangebylex', prefix .. 'gateway:' .. id, entries_of(kind))
  end
end

-- Has nothing new granted for as long as somebody may believe in leases of the name,
-- which are gone: until the last of them ends, where that is known.
local function quarantine_lost_leases()
  local g = load_guard()
  mend_flags = mend_flags .. FLAG_LEASES_LOST
  if not g or header[HEADER_HEED_LOSS] == 0 then
    return
  end
  note(g, 0)
  local till = now + max(g[GUARD_TTL], g[GUARD_BEFORE])
  local ends = attempt('zrange', prefix .. 'until:' .. name, 0, 0, 'withscores')
  if #ends == 2 and tonumber(ends[2]) >= 0 and record[RETRY_AT] ~= AFTER_SKEW then -- none is provisional, without an end, or has one by a wrong clock
    till = tonumber(call('zrange', prefix .. 'until:' .. name, -1, -1, 'withscores')[2])
  end
  g[GUARD_UNTIL], guard_changed = max(g[GUARD_UNTIL], min(till, now + LONGEST_QUARANTINE)), true
end

-- Puts the holders of the record in order, and reports whether they were not.
local function mend_holders()
  local r, key = record, prefix .. 'holders:' .. name
  local all = leases_in(key)
  if not all then
    unreadable(key)
  end
  local slots, extra, delays = 0, 0, 0
  local as_it_was = #all == r[HOLDERS]
  for _, kind in ipairs({'until', 'limits', 'tokens'}) do
    local n = attempt('zcard', prefix .. kind .. ':' .. name)
    as_it_was = as_it_was and n == #all
  end
  for _, h in ipairs(all) do
    slots, extra = slots + (h[SLOT] ~= NO_SLOT and h[PERMITS] or 0), extra + h[PERMITS] - 1
    delays = delays + (h[LOCK_DELAY] > 0 and 1 or 0)
  end
  if as_it_was and attempt('bitcount', prefix .. 'slots:' .. name) == slots then
    return false
  end
  if #all == 0 then
    quarantine_lost_leases()
  end
  for _, g in pairs(gateway_counts or {}) do
    g.leases = 0
  end
  forget_entries(LEASE_ENTRY)
  forget_entries(STREAM_ENTRY)
  delete_holder_keys()
  r[HOLDERS], r[EXTRA_PERMITS], sole_holder, has_holder_keys = #all, extra, nil, #all > 1
  local _, till, set, sent, other = delay.read()
  delay.write(delays, till, set, sent, other)
  if #all == 0 then
    r[ENDED_TOKEN], r[FORGET_AT] = r[LAST_TOKEN], max(r[FORGET_AT], now + FORGET_AFTER)
  elseif #all == 1 then
    sole_holder = all[1]
  end
  for _, h in ipairs(all) do
    if h[PROVISIONAL] == 1 then
      add_entry(LEASE_ENTRY, h)
    end
    put_holder(h)
    if not sole_holder then
      mark_slots(slots_of(h), true)
    end
  end
  return true
end

-- Forgets the places if anything is wrong with them, and reports whether.
local function mend_queue()
  local r, all = record, leases_in(prefix .. 'places:' .. name)
  local function has(kind, n)
    return attempt('zcard', prefix .. kind .. ':' .. name) == n
  end
  local listed = true
  for id, g in pairs(gateway_counts or {}) do
    listed = listed and call('zlexcount', prefix .. 'gateway:' .. id, entries_of(PLACE_ENTRY)) == g.places
  end
  if all and listed and #all == r[QUEUED] + r[RESTING] and has('queue', r[QUEUED]) and has('resting', r[RESTING]) then
    return false
  end
  for _, g in pairs(gateway_counts or {}) do
    g.places = 0
  end
  forget_entries(PLACE_ENTRY)
  call('unlink', prefix .. 'places:' .. name, prefix .. 'queue:' .. name, prefix .. 'resting:' .. name)
  r[QUEUED], r[RESTING], r[QUEUE_LAST], r[REST_TILL] = 0, 0, 0, 0
  mend_flags = mend_flags .. FLAG_PLACES_LOST
  return true
end

-- Deletes what there is for gateways where it can't be read, and reports whether: those who
-- wait there ask again, on whatever name.
local function mend_gateways()
  local deleted = false
  for id in pairs(all_gateways()) do
    local key = prefix .. 'gateway:' .. id
    if type(attempt('zcard', key)) == 'table' then
      call('del', key)
      deleted = true
    end
  end
  return deleted
end

-- Puts the keys of the operation's name in order, and reports whether they were not.
local function mend()
  local key = prefix .. 'lock:' .. name
  out, notices, record, sole_holder, has_holder_keys, ends, gateway_counts = {''}, nil, false, nil, false, false, nil
  stored = attempt('get', key)
  if not stored then
    new_record()
  elseif type(stored) == 'table' then
    unreadable(key)
  else
    local ok, fields = pcall(read_record, stored)
    record = ok and fields
    if not ok or record[HOLDERS] == 1 and not pcall(read_lease, stored, record[RECORD_SIZE + 1]) then
      unreadable(key)
    elseif record[HOLDERS] == 1 then
      sole_holder = stream.read_holder(stored, record[RECORD_SIZE + 1])
    end
    if record[GATEWAYS] ~= '' then
      read_gateways()
    end
  end
  read_indexed()
  local changed = mend_gateways()
  changed = record[HOLDERS] > 1 and mend_holders() or changed
  changed = mend_queue() or changed
  local history = prefix .. 'history:' .. name
  if type(attempt('llen', history)) == 'table' then -- it is no list; a new one begins
    call('del', history)
    changed = true
  end
  if changed then
    for id in pairs(gateway_counts or {}) do
      count(id, 0, 0)
    end
    if record[RETRY_AT] ~= AFTER_SKEW then -- which is due already, and has more to put right
      record[RETRY_AT] = now -- who waits may be next: the operation at hand may only look
    end
    save()
  end
  return changed
end

-- Reports whether it may be the data that an operation has broken off for. While the
-- clocks differ nobody can say when a lease that is gone ends.
local function may_be_damage(why)
  local refused = type(why) == 'table' and string.find(why.err, 'ser executing', 1, true) -- by the ACL
  return op and op[OP_NAME] ~= '' and not skewed and not refused
end
