-- An acquire: of a newcomer, of who has the lease or a place already.

local asked -- the place that an acquire asks for; its LEASE_TEXT is not to be used before it is written

-- Makes the lease the caller's answer.
local function holds(h)
  item(ITEM_OWN_LEASE, h[LEASE_TEXT])
  return 'ok'
end

-- Has the request wait in p, which it may have joined just now.
local function waits_in(p, joins)
  local at = position(p)
  local queued = record[QUEUED]
  local key = prefix .. 'queue:' .. name
  if at ~= queued and (at > queued or p[SEQ] == record[QUEUE_LAST] and call('zcard', key) ~= queued) then
    unreadable(key) -- who comes last is the last, or has come in the same instant
  end
  item(ITEM_OWN_PLACE, pack('>i4', at) .. p[LEASE_TEXT])
  view(MAX_HOLDERS_SHOWN)
  if joins then
    flags, joined = flags .. FLAG_JOINED, p[LEASE_TEXT]
  end
  return 'ok'
end

local function invalid(what, is)
  text, number = what, is
  return 'invalid_request'
end

-- Returns why a request may not have what its lease id has: the code, nil if it may.
-- depth is the hold it has now, and limit the limit.
local function unfit(h, depth, limit)
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
  elseif op[OP_LIMIT] ~= 0 and op[OP_LIMIT] ~= limit then
    text, number = 'limit', limit
    return 'conflict'
  elseif op[OP_PERMITS] ~= 0 and op[OP_PERMITS] ~= h[PERMITS] then
    text, number = 'permits', h[PERMITS]
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
  item(ITEM_REPLACED, it)
  notify(gateway, ITEM_REPLACED, it)
end

-- Has a lease hang on a request, if that is a stream: attached is its stamp, and '' of another.
-- Another stream that it hung on is replaced, unless that was told already. The twin of step.hang.
function stream.hang(h, stamp, attached, was_replaced)
  if h[ATTACHED] ~= '' and h[ATTACHED] ~= stamp and not was_replaced then
    replaces(h[GATEWAY], h[ATTACHED])
  end
  h[ATTACHED] = attached
  if attached ~= '' then
    h[GATEWAY] = me
  end
end

-- Tells whether a lease that a stream is to have as one of a set has been taken over since the
-- stream saw it last. The twin of Holding.takenSince.
function stream.taken(h)
  return asked[ATTACHED] ~= '' and op[OP_AGAIN] == 0 and asked[SET] ~= '' and h[ATTACHED] ~= op[OP_STAMP] and h[EPOCH] > op[OP_EPOCH]
end

-- Answers an acquire whose lease id holds the name: a retry, or one that deepens the
-- hold.
local function again(h)
  if h[HOLD] == 0 and h[SECRET] == op[OP_SECRET] then
    return lost('released')
  end
  local refused = unfit(h, h[PROVISIONAL] == 1 and 0 or h[HOLD], h[LIMIT]) -- of a provisional one nobody was told
  if refused then
    return refused
  end
  if stream.taken(h) then
    return 'replaced'
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
      remove_entry(LEASE_ENTRY, h)
      h[STAMP], h[GATEWAY] = stamp, me
      add_entry(LEASE_ENTRY, h)
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
  if op[OP_AGAIN] == 0 and (asked[ATTACHED] ~= '' or op[OP_HOLD] < 2 and asked[SET] == '') then -- the twin of step.attach
    if h[ATTACHED] ~= stamp and (asked[ATTACHED] ~= '' or h[ATTACHED] ~= '' or h[STAMP] ~= stamp) then
      h[EPOCH] = h[EPOCH] + 1
    end
    stream.hang(h, stamp, asked[ATTACHED], was_replaced)
  end
  if op[OP_HOLD] == h[HOLD] + 1 then
    h[HOLD], h[STAMP], fresh = op[OP_HOLD], '', false
    local till = expires_at(h, now, asked[TTL])
    if till > h[EXPIRES_AT] then
      set_ttl(h, asked[TTL])
      h[EXPIRES_AT] = till
      note_lease_ttl(h)
    end
  end
  put_holder(h)
  flags = fresh and flags .. FLAG_FRESH or flags
  return holds(h)
end

-- Answers an acquire whose lease id has a place: the request takes it over, with the limit that it
-- names, if it has one, and is granted at once if it can be.
local function resume(p)
  local shared = p[MODE] == SHARED
  local limit = shared and p[LIMIT] or 0 -- an exclusive place has 1, and asks for none
  if limit > 0 and op[OP_LIMIT] >= p[PERMITS] and op[OP_AGAIN] == 0 then
    limit = op[OP_LIMIT] -- it says anew what it tolerates
  end
  local refused = unfit(p, 0, limit)
  if refused then
    return refused
  end
  local rested = p[EXPIRES_AT] ~= 0
  if not rested and p[STAMP] ~= op[OP_STAMP] then
    replaces(p[GATEWAY], p[STAMP])
  end
  hear(true)
  remove_place(p, rested)
  p[STAMP], p[GATEWAY], p[ATTACHED], p[LIMIT] = op[OP_STAMP], me, asked[ATTACHED], shared and limit or p[LIMIT]
  enter(p)
  if left == 0 and position(p) == 1 then
    left = 1 -- a grant to who asks is none of what has come due
  end
  hand_off()
  local h = find(op[OP_LEASE])
  if h then
    flags = flags .. FLAG_FRESH
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
  if op[OP_INTENT] > 0 and p[MODE] == EXCLUSIVE and r and r[QUEUED] == 0 and r[HOLDERS] > 0 and (not sole_holder or sole_holder[MODE] == SHARED) then
    call('set', prefix .. 'intent:' .. name, pack('>I7s', now + op[OP_INTENT], p[LEASE]), 'px', keep_ms(op[OP_INTENT] + TOMBSTONE_TTL, 0, '1'))
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

-- Gives a place what it waits by. One that is granted at once, and firm, does without: it
-- has joined when it was acquired. The twin of step.placeOf.
local function join(p)
  p[JOINED_AT], p[SEQ], p[GATEWAY] = now, max(record and max(record[QUEUE_LAST], record[BORN]) or 0, now) + 1, me
end

function verbs.acquire()
  if skewed then
    return 'clock_skew'
  end
  asked = unpack_lease(op_text, op[OP_SIZE + 1])
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
  p = asked
  local waits, alone = op[OP_WAITS] == 1, p[SET] == ''
  if p[KEEP] == 1 or p[ATTACHED] ~= '' or not alone then -- it may come to wait after all, or its gateway be told something
    join(p)
  end
  if (not record or record[QUEUED] == 0) and not (record and record[DELAY] ~= '' and delay.lasts()) and has_room(p) and not kept_out(p) then
    local refused, us, why = grant(p, alone, not waits and alone and op[OP_TOKEN] or 0)
    if not refused then
      fulfil(p)
      flags = flags .. FLAG_FRESH -- its lease is among those that were granted
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
  join(p)
  if not record then -- in quarantine
    new_record()
  end
  enter(p)
  return waits_in(p, true)
end
