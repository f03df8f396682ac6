-- The other verbs of fencing.Step.

-- Sets what people are told of the lease, if the renewal says so. The twin of Holding.label.
local function label(h)
  local at = op[OP_SIZE + 1]
  if at > #op_text then
    return
  end
  local owner, metadata = unpack('>ss', op_text, at)
  h[OWNER] = owner ~= '' and owner or h[OWNER]
  if metadata ~= '' then
    h[METADATA] = metadata ~= '{}' and metadata or ''
  end
end

-- Tells whether a lease hangs on the stream that asks: also where that was told of more takeovers
-- than are known of here. The twin of Holding.hangsOn.
function stream.has(h)
  return h[HOLD] > 0 and (op[OP_STAMP] == h[ATTACHED] or op[OP_EPOCH] > h[EPOCH])
end

-- As own, for who goes on with a lease, a stream or not. The twin of step.kept.
function stream.kept()
  local h, refused = own()
  if h and h[HOLD] == 0 then
    return nil, lost('released')
  end
  return h, refused
end

-- Has a lease hang on the stream that renews it. The twin of step.remind.
function stream.remind(h, stamp)
  if h[ATTACHED] ~= stamp then
    h[STAMP] = h[STAMP] == stamp and stamp or ''
    stream.hang(h, stamp, stamp)
  else
    h.told = nil -- it is told anew, should what is told have been lost
  end
  h[EPOCH] = max(h[EPOCH], op[OP_EPOCH])
end

function verbs.renew()
  local h, refused = stream.kept()
  if not h then
    return refused
  elseif op[OP_STAMP] ~= '' and not stream.has(h) then
    return 'replaced'
  elseif clocks.unsure(h) then
    return 'clock_skew'
  end
  local mode, limit, ttl = op[OP_MODE], op[OP_LIMIT], op[OP_TTL]
  local shared, permits = h[MODE] == SHARED, op[OP_PERMITS] > 0 and op[OP_PERMITS] or h[PERMITS]
  if mode == EXCLUSIVE and shared then -- from here on the twin of Holding.checkChange
    return invalid('mode', 0)
  elseif shared and (limit > 0 and h[LIMIT] == 0 or limit == 0 and h[LIMIT] > 0 and mode == SHARED) or
    not shared and limit > 0 and mode ~= SHARED then
    return invalid('limit', h[LIMIT])
  elseif permits > h[PERMITS] then
    return invalid('permits', h[PERMITS])
  elseif limit > 0 and limit < permits then
    return invalid('low_limit', permits)
  end
  if h[PROVISIONAL] == 1 then -- its holder knows: a retry was answered
    firm(h)
  end
  ttl = ttl > 0 and ttl or granted_ttl(h)
  local at, set, sent, sure = clocks.end_after(h, ttl)
  if sure <= 0 then -- only when skewed
    return 'clock_skew'
  end
  number = h[EXPIRES_AT] - now
  clocks.prolong(h, ttl, at, set, sent)
  h[TOLD] = 1
  if op[OP_STAMP] ~= '' then
    stream.remind(h, op[OP_STAMP])
  end
  if mode == SHARED and h[MODE] == EXCLUSIVE then
    h[MODE], h[LIMIT] = SHARED, limit
    h[SLOT], h[SLOTS] = free_slots(SHARED, limit, 1)
    if has_holder_keys then
      mark_slots(slots_of(h), true)
    end
  elseif limit > 0 then
    h[LIMIT] = limit
  end
  if permits < h[PERMITS] then
    keep_permits(h, permits)
  end
  label(h)
  put_holder(h)
  return clocks.tell(h, sure)
end

-- Has a lease live on for so long without the stream that it was attached to. Where it is the holder
-- that asks for this, it has left. The twin of step.linger.
function stream.linger(h, ttl, at, set, sent)
  h[HOLD] = op[OP_STAMP] ~= '' and h[HOLD] or 0
  h[ATTACHED], h[EPOCH] = '', max(h[EPOCH], op[OP_EPOCH]) + 1
  clocks.prolong(h, ttl, at, set, sent)
end

-- Ends a lease, unwinds its hold or leaves it to linger. The twin of step.letGo.
function stream.let_go(h, hold, ttl)
  if hold < 2 and ttl == 0 then
    end_lease(h, 'released', now, '')
    return 'ok'
  end
  if clocks.unsure(h) then -- as in renew
    return 'clock_skew'
  elseif h[PROVISIONAL] == 1 then
    firm(h)
  end
  local sure, lingers, at, set, sent = clocks.sure(h), false
  if ttl > 0 then
    local after
    at, set, sent, after = clocks.end_after(h, ttl)
    lingers = h[HOLD] > 0 or at < h[EXPIRES_AT]
    sure = lingers and after or sure
  end
  if sure <= 0 then
    return 'clock_skew'
  elseif lingers then
    stream.linger(h, ttl, at, set, sent)
  elseif hold > 1 then
    h[HOLD] = min(h[HOLD], hold - 1)
  end
  h[TOLD] = 1
  put_holder(h)
  return clocks.tell(h, sure)
end

function verbs.release()
  local h, refused = own()
  if not h then
    if refused == 'lease_lost' and text == 'released' then -- a retry
      text = ''
      return 'ok'
    end
    return refused
  elseif op[OP_STAMP] ~= '' and not stream.has(h) then
    return 'ok' -- a newer request has the lease
  elseif op[OP_HOLD] > 1 and h[HOLD] == 0 then
    return 'ok' -- as of a lease that was released
  end
  return stream.let_go(h, op[OP_HOLD], op[OP_TTL])
end

function verbs.confirm()
  local h, refused = stream.kept()
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
  flags = h[TOLD] == 0 and flags .. FLAG_FRESH or flags
  return holds(h)
end

function verbs.leave()
  if skewed then
    return 'clock_skew'
  end
  local h = find(op[OP_LEASE])
  if h and h[HOLD] > 0 and h[SECRET] == op[OP_SECRET] then
    if h[STAMP] ~= op[OP_STAMP] then
      return 'replaced'
    end
    flags = h[TOLD] == 0 and flags .. FLAG_FRESH or flags
    return holds(h)
  end
  local p = find_place(op[OP_LEASE])
  if not p or p[SECRET] ~= op[OP_SECRET] then
    return 'ok'
  elseif p[STAMP] ~= op[OP_STAMP] then
    return 'replaced'
  end
  if p[EXPIRES_AT] == 0 then
    item(ITEM_OWN_PLACE, pack('>i4', position(p)) .. p[LEASE_TEXT])
    depart(p)
  end
  hand_off()
  flags = flags .. FLAG_VIEW -- there was a place, so the view belongs to the answer
  view(MAX_HOLDERS_SHOWN)
  return 'ok'
end

function verbs.take_back()
  local stamp, unknown = op[OP_STAMP], op[OP_UNKNOWN] == 1
  if stamp == '' then
    return 'ok'
  end
  local function asked(h)
    return h[STAMP] == stamp and (h[SECRET] == op[OP_SECRET] or unknown and h[GATEWAY] == me)
  end
  local h = find(op[OP_LEASE])
  if h then
    if asked(h) and (h[PROVISIONAL] == 1 or not unknown) and (h[TOLD] == 0 or op[OP_REFUSED] == 1) then
      undo(h)
    elseif op[OP_LEFT] == 1 and not unknown and h[SECRET] == op[OP_SECRET] and stream.has(h) then
      return stream.let_go(h, 0, op[OP_TTL]) -- as by the end of the stream
    end
    return 'ok'
  end
  local p = find_place(op[OP_LEASE])
  if p and asked(p) and p[EXPIRES_AT] == 0 then
    depart(p)
  end
  return 'ok'
end

-- Has a lease end by the time that a break leaves it; its expiry is not moved. The twin of
-- step.giveNotice.
local function give_notice(h)
  if skewed then
    return 'clock_skew'
  end
  local at = max(now + op[OP_NOTICE], h[EXPIRES_AT])
  if h[BREAK_AT] == 0 or at < h[BREAK_AT] then
    h[BREAK_AT], h[BREAK_REASON] = at, op[OP_BREAK_REASON]
    put_holder(h)
    noticed = h[LEASE_TEXT]
  end
  return holds(h)
end

verbs['break'] = function()
  local broken = fmt('%016d', op[OP_TOKEN])
  local h = holder_with(op[OP_TOKEN])
  if h and due(h) then
    end_overdue(h)
  elseif h and op[OP_NOTICE] > 0 and h[PROVISIONAL] == 0 then -- of a provisional one nobody was told
    return give_notice(h)
  elseif h then
    end_broken(h, now, op[OP_BREAK_REASON])
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

-- Takes a place out of the queue for good, and has its request ask. The twin of step.expel.
local function expel(p)
  local reason, rested = op[OP_BREAK_REASON], p[EXPIRES_AT] ~= 0
  remove_place(p, rested)
  entomb(p, 'evicted', now, now + TOMBSTONE_TTL, reason)
  item(ITEM_EVICTED, pack('>s', reason) .. p[LEASE_TEXT])
  if not rested then
    notify(p[GATEWAY], ITEM_ASK, pack('>s', p[STAMP]))
  end
end

function verbs.evict()
  if skewed then
    return 'clock_skew'
  end
  local h = find(op[OP_LEASE])
  if h then
    token = h[TOKEN]
    return 'conflict'
  end
  local p = find_place(op[OP_LEASE])
  if p then
    expel(p)
    return 'ok'
  end
  local tomb = tombstone(op[OP_LEASE])
  return tomb and tomb[TOMB_REASON] == 'evicted' and 'ok' or 'not_found' -- a retry
end

function verbs.claim()
  local h, refused = stream.kept()
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
  local fresh = h[CLAIMED] == 0
  h[TOKEN], h[CLAIMED] = claimed, 1
  counter = max(highest(), claimed)
  issued(h)
  put_holder(h)
  newly_claimed = fresh and h[LEASE_TEXT] or nil
  return holds(h)
end

-- Returns when expire has something to do here, on a name that is not idle. The twin of
-- State.Due.
local function due_at()
  local r, at = record, sole_holder and sole_holder[PROVISIONAL] == 0 and sole_holder[EXPIRES_AT] or math.huge
  if r[HOLDERS] > 1 then
    at = tonumber(call('zrangebyscore', prefix .. 'until:' .. name, 0, '+inf', 'withscores', 'limit', 0, 1)[2] or at)
  end
  if gateway_counts then
    read_signs(gateway_counts)
    for id in pairs(gateway_counts) do
      at = min(at, dead_at(id))
    end
  end
  at = r[RESTING] > 0 and min(at, r[REST_TILL]) or at
  return r[RETRY_AT] > 0 and min(at, r[RETRY_AT]) or at
end

-- Puts into the indexes what the record says that they have, and counts what they had not.
function verbs.index()
  if indexed > 0 then
    number = call('zadd', prefix .. 'expiry', fmt('%d', indexed), name)
  end
  if was_held then
    number = number + call('zadd', prefix .. 'names', 0, name)
  end
  return 'ok'
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
