-- The verbs of fencing.Step, spelled as there. Each returns a code.

local verbs = {}

local asked -- the place that an acquire asks for; its LEASE_TEXT is not to be used before it is written

-- Makes the lease the caller's answer.
local function holds(h)
  item('O', h[LEASE_TEXT])
  return 'ok'
end

-- Has the request wait in p, which it may have joined just now.
local function waits_in(p, joins)
  item('P', pack('>i4', position(p)) .. p[LEASE_TEXT])
  view(MAX_HOLDERS_SHOWN)
  if joins then
    flags, joined = flags .. 'j', p[LEASE_TEXT]
  end
  return 'ok'
end

local function invalid(what, is)
  text, number = what, is
  return 'invalid_request'
end

-- Returns why a request may not have what its lease id has: the code, nil if it may.
-- depth is the hold it has now.
local function unfit(h, depth)
  if h[SECRET] ~= op[OP_SECRET] then
    return lost('unknown')
  elseif h[SET] ~= asked[SET] then
    return invalid('names', 0)
  elseif op[OP_HOLD] > depth + 1 or op[OP_HOLD] > 1 and depth == 0 then
    return invalid('hold', depth)
  end
  if op[OP_AGAIN] == 1 then
    return h[STAMP] ~= op[OP_STAMP] and 'replaced' or nil
  elseif op[OP_MODE] ~= NO_MODE and op[OP_MODE] ~= h[MODE] then -- from here on the twin of AcquireRequest.Contradicts
    text, number = 'mode', h[MODE]
    return 'conflict'
  elseif op[OP_LIMIT] ~= 0 and op[OP_LIMIT] ~= h[LIMIT] then
    text, number = 'limit', h[LIMIT]
    return 'conflict'
  elseif asked[OWNER] ~= '' and asked[OWNER] ~= h[OWNER] then
    text, present = 'owner', h[OWNER]
    return 'conflict'
  end
end

-- The request that waited until now, or whose stream the lease was attached to, is
-- replaced.
local function replaces(gateway, stamp)
  local it = pack('>ss', gateway, stamp)
  item('X', it)
  tell(gateway, 'X', it)
end

-- Answers an acquire whose lease id holds the name: a retry, or one that deepens the
-- hold.
local function again(h)
  local refused = unfit(h, h[PROVISIONAL] == 1 and 0 or h[HOLD]) -- of a provisional one nobody was told
  if refused then
    return refused
  end
  local stamp, was_replaced = op[OP_STAMP], false
  if h[PROVISIONAL] == 1 then -- not told yet, so the lease is this request's from here on
    local unsafe = quarantined() -- as in confirm; a request that waits waits for the end of that
    if asked[SET] == '' and unsafe and (op[OP_WAITS] == 0 or unsafe == 0) then
      return refuse_quarantined(unsafe)
    end
    if h[STAMP] ~= stamp then
      was_replaced = true
      replaces(h[GATEWAY], h[STAMP])
    end
    if asked[SET] == '' and not unsafe then
      firm(h)
      h[STAMP], h[GATEWAY] = stamp, me
    else
      confirmed(h) -- by its gateway until now
      h[STAMP], h[GATEWAY] = stamp, me
      count(me, 0, 1)
      hear(true)
    end
  elseif h[STAMP] ~= stamp then
    local unsafe = h[STAMP] ~= '' and h[TOLD] == 0 and quarantined() -- it may have been taken back, and granted to another
    if unsafe then
      return refuse_quarantined(unsafe)
    end
    h[STAMP] = '' -- another request has taken over: nobody may take the grant back
  end
  local fresh = h[STAMP] == stamp and h[TOLD] == 0
  if op[OP_AGAIN] == 0 and op[OP_HOLD] <= h[HOLD] then -- the twin of step.attach
    if h[ATTACHED] ~= '' and h[ATTACHED] ~= stamp and not was_replaced then
      replaces(h[GATEWAY], h[ATTACHED])
    end
    h[ATTACHED] = asked[ATTACHED]
    if h[ATTACHED] ~= '' then
      h[GATEWAY] = me
    end
  end
  if op[OP_HOLD] == h[HOLD] + 1 then
    h[HOLD], h[STAMP], fresh = op[OP_HOLD], '', false
    local till = expires_at(h, asked[TTL])
    if till > h[EXPIRES_AT] then
      h[TTL], h[EXPIRES_AT] = asked[TTL], till
      uses(h)
    end
  end
  put_holder(h)
  flags = fresh and flags .. 'f' or flags
  return holds(h)
end

-- Answers an acquire whose lease id has a place: the request takes it over, and is
-- granted at once if it can be.
local function resume(p)
  local refused = unfit(p, 0)
  if refused then
    return refused
  end
  local rested = p[EXPIRES_AT] ~= 0
  if not rested and p[STAMP] ~= op[OP_STAMP] then
    replaces(p[GATEWAY], p[STAMP])
  end
  hear(true)
  remove_place(p, rested)
  p[STAMP], p[GATEWAY], p[ATTACHED] = op[OP_STAMP], me, asked[ATTACHED]
  enter(p)
  hand_off()
  local h = find(op[OP_LEASE])
  if h then
    flags = flags .. 'f'
    return holds(h)
  elseif op[OP_WAITS] == 1 then
    return waits_in(p, rested)
  end
  view(MAX_HOLDERS_SHOWN) -- while the place is still in it
  number = position(p)
  remove_place(p)
  if not rested then
    departed(p)
  elseif p[KEEP] == 1 then -- it had left before
    rest(p)
  end
  return 'locked'
end

-- Tells whether a shared lease is not granted for the intent of another one. Who
-- waits is served in order anyway. The twin of step.keptOut.
local function kept_out(p)
  if p[MODE] ~= SHARED or op[OP_WAITS] == 1 or not record then
    return false
  end
  local found = call('get', prefix .. 'intent:' .. name)
  if not found then
    return false
  end
  local till, lease = unpack('>I7s', found)
  return now < till and lease ~= p[LEASE]
end

-- Notes that an exclusive lease was refused for the shared ones. The twin of
-- step.intend.
local function intend(p)
  local r = record
  if op[OP_INTENT] > 0 and p[MODE] == EXCLUSIVE and r and r[QUEUED] == 0 and r[HOLDERS] > 0 and (not one or one[MODE] == SHARED) then
    call('set', prefix .. 'intent:' .. name, pack('>I7s', now + op[OP_INTENT], p[LEASE]), 'px', keep_ms(op[OP_INTENT], 0, '1'))
  end
end

-- Ends the intent of a lease that was granted. The twin of step.fulfil.
local function fulfil(p)
  if op[OP_INTENT] == 0 and op[OP_TOKEN] == 0 then
    return
  end
  local key = prefix .. 'intent:' .. name
  local found = call('get', key)
  if found and sub(found, 8, -2) == p[LEASE] then
    call('del', key)
  end
end

function verbs.acquire()
  if skewed then
    return 'clock_skew'
  end
  asked = {unpack(LEASE_FORMAT, op_text, op[OP_SIZE + 1])}
  local h = find(op[OP_LEASE])
  if h then
    return again(h)
  end
  local p = find_place(op[OP_LEASE])
  if p then
    return resume(p)
  end
  local tomb = tombstone(op[OP_LEASE])
  if tomb then
    return lost_to(tomb, op[OP_SECRET])
  elseif op[OP_HOLD] > 1 then
    return invalid('hold', 0)
  end
  p = asked -- from here on the twin of step.placeOf
  p[JOINED_AT], p[SEQ], p[GATEWAY] = now, max(record and record[QUEUE_LAST] or 0, now) + 1, me
  local waits, alone = op[OP_WAITS] == 1, p[SET] == ''
  if (not record or record[QUEUED] == 0) and fits(p) and not kept_out(p) then
    local refused, us, why = grant(p, alone, not waits and alone and op[OP_TOKEN] or 0)
    if not refused then
      fulfil(p)
      flags = flags .. 'f' -- its lease is among those that were granted
      return 'ok'
    elseif not waits or refused ~= 'quarantined' or us == 0 then
      number, text = us, why
      return refused
    end
  end
  if not waits then
    intend(p)
    view(MAX_HOLDERS_SHOWN)
    return 'locked'
  elseif op[OP_MAX_WAITERS] > 0 and record and record[QUEUED] + record[RESTING] >= op[OP_MAX_WAITERS] then
    view(MAX_HOLDERS_SHOWN)
    return 'too_many_requests'
  end
  hear(true)
  if not record then -- in quarantine
    new_record()
  end
  enter(p)
  return waits_in(p, true)
end

function verbs.renew()
  local h, refused = own()
  if not h then
    return refused
  elseif h[PROVISIONAL] == 0 and not live(h) then -- only seen here when skewed: an expiry is not judged then
    return 'clock_skew'
  end
  local mode, limit, ttl = op[OP_MODE], op[OP_LIMIT], op[OP_TTL]
  if mode == EXCLUSIVE and h[MODE] == SHARED then
    return invalid('mode', 0)
  elseif mode == SHARED and h[MODE] == SHARED and limit ~= h[LIMIT] then
    return invalid('limit', h[LIMIT])
  end
  if h[PROVISIONAL] == 1 then -- its holder knows: a retry was answered
    firm(h)
  end
  ttl = ttl > 0 and ttl or h[GRANT_TTL]
  number = h[EXPIRES_AT] - now
  h[TTL], h[EXPIRES_AT], h[TOLD] = ttl, expires_at(h, ttl), 1
  uses(h)
  if mode == SHARED and h[MODE] == EXCLUSIVE then
    h[MODE], h[LIMIT], h[SLOT] = SHARED, limit, free_slot(SHARED, limit)
  end
  put_holder(h)
  return holds(h)
end

function verbs.release()
  local h, refused = own()
  if not h then
    if refused == 'lease_lost' and text == 'released' then -- a retry
      text = ''
      return 'ok'
    end
    return refused
  elseif op[OP_STAMP] ~= '' and op[OP_STAMP] ~= h[ATTACHED] then
    return 'ok' -- a newer request has the lease
  elseif op[OP_HOLD] < 2 then
    end_lease(h, 'released', now)
    return 'ok'
  end
  if h[PROVISIONAL] == 1 then -- as in renew
    firm(h)
  elseif not live(h) then
    return 'clock_skew'
  end
  h[HOLD], h[TOLD] = min(h[HOLD], op[OP_HOLD] - 1), 1
  put_holder(h)
  return holds(h)
end

function verbs.confirm()
  local h, refused = own()
  if not h then
    return refused
  elseif h[STAMP] ~= op[OP_STAMP] then
    return 'replaced'
  elseif skewed then
    return 'clock_skew'
  end
  if h[PROVISIONAL] == 1 then -- what was forgotten may be that it was taken back, and granted to another
    local unsafe = quarantined()
    if unsafe then
      return refuse_quarantined(unsafe)
    end
    firm(h)
    put_holder(h)
  end
  flags = h[TOLD] == 0 and flags .. 'f' or flags
  return holds(h)
end

function verbs.leave()
  if skewed then
    return 'clock_skew'
  end
  local h = find(op[OP_LEASE])
  if h and h[SECRET] == op[OP_SECRET] then
    if h[STAMP] ~= op[OP_STAMP] then
      return 'replaced'
    end
    flags = h[TOLD] == 0 and flags .. 'f' or flags
    return holds(h)
  end
  local p = find_place(op[OP_LEASE])
  if not p or p[SECRET] ~= op[OP_SECRET] then
    return 'ok'
  elseif p[STAMP] ~= op[OP_STAMP] then
    return 'replaced'
  end
  if p[EXPIRES_AT] == 0 then
    item('P', pack('>i4', position(p)) .. p[LEASE_TEXT])
    depart(p)
  end
  hand_off()
  flags = flags .. 'v' -- there was a place, so the view belongs to the answer
  view(MAX_HOLDERS_SHOWN)
  return 'ok'
end

function verbs.take_back()
  local stamp, only = op[OP_STAMP], op[OP_PROVISIONAL] == 1
  local h = find(op[OP_LEASE])
  if h and h[SECRET] == op[OP_SECRET] and stamp ~= '' and h[STAMP] == stamp and (h[PROVISIONAL] == 1 or not only)
    and (h[TOLD] == 0 or op[OP_REFUSED] == 1) then
    undo(h)
    return 'ok'
  end
  local p = not only and find_place(op[OP_LEASE])
  if p and p[SECRET] == op[OP_SECRET] and p[STAMP] == stamp and p[EXPIRES_AT] == 0 then
    depart(p)
  end
  return 'ok'
end

-- Returns the holder with a token, nil if there is none.
local function holder_with(t)
  if one or not record or record[HOLDERS] == 0 then
    return one and one[TOKEN] == t and one or nil
  end
  for _, stored_lease in ipairs(call('hvals', prefix .. 'holders:' .. name)) do
    if unpack('>I7', stored_lease) == t then
      return read_lease(stored_lease)
    end
  end
end

verbs['break'] = function()
  local broken = fmt('%016d', op[OP_TOKEN])
  local h = holder_with(op[OP_TOKEN])
  if h and due(h) then
    lapse(h)
  elseif h then
    record[BROKEN] = sub(record[BROKEN] .. broken, -16 * MAX_BROKEN)
    end_lease(h, 'broken', now)
    return 'ok'
  end
  for was in string.gmatch(record and record[BROKEN] or '', '%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d') do
    if was == broken then
      return 'ok' -- a retry
    end
  end
  if skewed then
    return 'clock_skew'
  end
  view(MAX_HOLDERS_SHOWN)
  return 'stale_token'
end

function verbs.claim()
  local h, refused = own()
  if not h then
    return refused
  elseif skewed then
    return 'clock_skew'
  elseif h[PROVISIONAL] == 1 then -- of a set, which a quorum has not
    return lost('unknown')
  end
  local claimed = op[OP_TOKEN]
  if far_ahead(claimed) then
    text = 'floor'
    return 'clock_skew'
  elseif not claimable(h, claimed) then
    token = h[CLAIMED] == 1 and h[TOKEN] or record[LAST_TOKEN]
    return 'stale_token'
  end
  h[TOKEN], h[CLAIMED] = claimed, 1
  counter = max(highest(), claimed)
  record[LAST_TOKEN] = max(record[LAST_TOKEN], claimed)
  put_holder(h)
  return holds(h)
end

-- Returns when expire has something to do here. The twin of State.Due.
local function due_at()
  local r, at = record, math.huge
  if idle() then
    return r[FORGET_AT]
  end
  if one then
    at = one[PROVISIONAL] == 1 and at or one[EXPIRES_AT]
  elseif r[HOLDERS] > 1 then
    at = tonumber(call('zrangebyscore', prefix .. 'until:' .. name, 0, '+inf', 'withscores', 'limit', 0, 1)[2] or at)
  end
  if here then
    read_signs(here)
    for id in pairs(here) do
      at = min(at, lapse_of(id))
    end
  end
  at = r[RESTING] > 0 and min(at, r[REST_TILL]) or at
  return r[STUCK] > 0 and min(at, r[STUCK]) or at
end

-- Does what time has brought about on a name, and puts right an index entry that has
-- nothing behind it, so that it isn't found due for ever.
function verbs.expire()
  if not record or idle() then
    call('zrem', prefix .. 'expiry', name)
    call('zrem', prefix .. 'names', name)
  end
  return 'ok'
end

function verbs.inspect()
  view(op[OP_LIMIT])
  view_waiters()
  return 'ok'
end

function verbs.list()
  view(op[OP_LIMIT])
  return 'ok'
end

-- Answers with how the last leases ended, oldest first, those included that ran out
-- and nobody has noticed. The twin of step.history.
function verbs.history()
  view(op[OP_LIMIT])
  if not record or forgotten() then
    return 'ok'
  end
  for _, entry in ipairs(call('lrange', prefix .. 'history:' .. name, -MAX_HISTORY, -1)) do
    local _, _, at = unpack(END_FORMAT, entry)
    if read_lease(entry, at)[ACQUIRED_AT] >= record[BORN] then -- others are of before the name was forgotten
      item('E', entry)
    end
  end
  local over = one and one[PROVISIONAL] == 0 and not live(one) and {one} or {}
  if record[HOLDERS] > 1 then
    over = holders_of(call('zrevrangebyscore', prefix .. 'until:' .. name, now, 0, 'limit', 0, MAX_HISTORY))
  end
  for _, h in ipairs(over) do
    item('E', pack(END_FORMAT, 'expired', h[EXPIRES_AT]) .. h[LEASE_TEXT])
  end
  return 'ok'
end

-- Says that a gateway lives, and returns what it may have missed. The twin of
-- fencing.Beat.
function verbs.heartbeat()
  if skewed then
    return 'clock_skew'
  end
  read_signs()
  if not signs[me] or now >= lapse_of(me) then
    flags = flags .. 'l'
  end
  hear(true)
  local leases = call('hgetall', prefix .. 'unconfirmed:' .. me)
  for i = 1, #leases, 2 do
    item('U', sub(leases[i], 27) .. '\0' .. leases[i + 1])
  end
  for _, due_name in ipairs(call('zrangebyscore', prefix .. 'expiry', '-inf', now, 'limit', 0, op[OP_LIMIT])) do
    item('T', due_name .. '\0')
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
  local g, how = careful(), a[ARRIVAL_HOW]
  if not g and how == '?' then
    return 'not_found'
  end
  local seen, floor = a[ARRIVAL_BORN], head[HEAD_FLOOR]
  if not g then
    guard = GUARD_EMPTY
    g = guard
    g[GUARD_LAYOUT], g[GUARD_PARTITIONS], g[GUARD_BORN] = a[ARRIVAL_LAYOUT], a[ARRIVAL_PARTITIONS], now
  end
  text = g[GUARD_SERVER] -- who served before
  note(g, 0)
  local in_use, longest = max(g[GUARD_TTL], g[GUARD_BEFORE]), a[ARRIVAL_LONGEST]
  local behind = floor > highest() and floor <= now + MAX_FLOOR_LEAD
  local longer = now < g[GUARD_UNTIL] and (longest > in_use or how == 'm') -- than who began the quarantine knew of
  local lossless = how == 'l' or how == 'n' and text == ''
  local is_lost = how == 'x' or seen ~= 0 and seen ~= g[GUARD_BORN]
  if is_lost or behind or longer or not lossless and text ~= a[ARRIVAL_SERVER] then
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
  item('Y', pack(GUARD_FORMAT, spread(g, 1, GUARD_SIZE)))
  return 'ok'
end
