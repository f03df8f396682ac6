-- The rich part of acquire.lua: the twins of step.acquire, again and resume.

local claim = sub(ARGV[5], 1, 85)
local lease, stamp = sub(claim, 44, 69), sub(claim, 70)
local hold, waits, asks_again, max_waiters, intent, propose, mode, set = 1, false, false, 0, '0', '0', '-', ''
if #ARGV[5] > 85 then
  hold, waits, asks_again, max_waiters, intent, propose, mode, set = string.match(ARGV[5], '^.\n(%d+)\n(.)\n(.)\n(%d+)\n(%d+)\n(%d+)\n(.)\n(.*)$', 86)
  hold, waits, asks_again, max_waiters = tonumber(hold), waits == 'w', asks_again == 'a', tonumber(max_waiters)
end
local attached = '' -- the stream that the lease is to hang on
if set == '@' then
  set, attached = '', stamp
end

-- The request waits in p, which it may have joined just now.
local function wait_in(p, joins)
  reply.waits(p)
  t.shows = true
  if joins then
    flags, t.joined = flags .. 'j', 'Q' .. p.text
  end
  return 'ok'
end

-- Returns the field that the request names unlike what its lease id has, and what it
-- has; nil if there is none. The twin of AcquireRequest.Contradicts.
local function contradicts(h)
  local limit, owner = string.match(ARGV[7], '^%w*\n%d*\n(%d+)\n%-?%d+\n%d+\n%d+\n%d+\n%d+\n[^\n]*\n([^\n]*)\n', 4)
  local present = string.match(h.rest, '^[^\n]*')
  if asks_again then
    return
  elseif mode ~= '-' and mode ~= h.mode then
    return 'mode', h.mode
  elseif mode == 's' and limit ~= '0' and limit ~= h.limit then
    return 'limit', h.limit
  elseif owner ~= '' and owner ~= present then
    return 'owner', present
  end
end

-- Returns why a request may not have what its lease id has: the code, nil if it
-- may. depth is the hold it has now.
local function unfit(h, depth)
  if not claims.fit(h, claim) then
    detail = 'unknown'
    return 'lease_lost'
  elseif h.set ~= set then
    detail = 'names'
    return 'invalid_request'
  elseif hold > depth + 1 or hold > 1 and depth == 0 then
    detail = 'hold\n' .. depth
    return 'invalid_request'
  end
  local field, present = contradicts(h)
  if field then
    detail = field .. '\n' .. present
    return 'conflict'
  end
  if asks_again and h.stamp ~= stamp then
    return 'replaced'
  end
end

local function again(h)
  local refused = unfit(h, h.provisional and 0 or tonumber(h.hold)) -- of a provisional one nobody was told
  if refused then
    return refused
  end
  if h.provisional then -- not told yet, so the lease is this request's from here on
    local why = set == '' and rules.unsafe() -- as in rich_confirm.lua; who waits waits for the end of that
    if why and (not waits or why == '') then
      detail = why
      return 'quarantined'
    end
    if h.stamp ~= stamp then
      t.replaced = {gateway = h.gateway, stamp = h.stamp}
    end
    if set == '' and not why then
      rules.firm(h)
      h.stamp, h.gateway = stamp, t.me
    else
      holders.settled(h)
      h.stamp, h.gateway = stamp, t.me
      record.count(t.me, 0, 1)
      rules.join()
    end
  elseif h.stamp ~= stamp then
    local why = h.stamp ~= NO_STAMP and not h.told and rules.unsafe() -- it may have been taken back, and granted to another
    if why then
      detail = why
      return 'quarantined'
    end
    h.stamp = NO_STAMP -- another request has taken over: nobody may take the grant back
  end
  local fresh = h.stamp == stamp and not h.told
  if not asks_again and hold < h.hold + 1 then
    if h.attached ~= '' and h.attached ~= stamp then
      t.replaced = t.replaced or {gateway = h.gateway, stamp = h.attached}
    end
    h.attached, h.gateway = attached, attached == '' and h.gateway or t.me
  end
  if hold == h.hold + 1 then
    h.hold, h.stamp, fresh = hold, NO_STAMP, false
    local ttl = string.match(ARGV[7], '^%d+\n%-?%d+\n%d+\n(%d+)\n', 6)
    local till = rules.expires_at(h, ttl)
    if till > h.expires_at then
      h.ttl, h.expires_at = ttl, till
      rules.uses(h)
    end
  end
  holders.put(h)
  flags = fresh and flags .. 'f' or flags
  reply.holds(h)
  return 'ok'
end

local function resume(p)
  local refused = unfit(p, 0)
  if refused then
    return refused
  end
  local rested = p.expires_at ~= 0
  if not rested and p.stamp ~= stamp then
    t.replaced = {gateway = p.gateway, stamp = p.stamp}
  end
  rules.join()
  queue.remove(p, rested)
  p.stamp, p.gateway, p.attached = stamp, t.me, attached
  queue.enter(p)
  rules.hand_off()
  local h = rules.find(lease)
  if h then
    flags = flags .. 'f'
    reply.holds(h)
    return 'ok'
  end
  if waits then
    return wait_in(p, rested)
  end
  reply.view(record.encode()) -- while the place is still in it
  detail = queue.position(p)
  queue.depart(p)
  if rested then -- it had left before
    t.left[#t.left], t.left[#t.left - 1] = nil, nil
  end
  return 'locked'
end

-- Tells whether a shared lease is not granted for the intent of another one. Who
-- waits is served in order anyway. The twin of step.keptOut.
local function kept_out(p)
  if p.mode ~= 's' or waits or not t.record then
    return false
  end
  local text = call('GET', t.prefix .. 'intent:' .. t.name)
  return text and now < tonumber(sub(text, 1, 16)) and sub(text, 17) ~= lease
end

-- Notes that an exclusive lease was refused for the shared ones. The twin of
-- step.intend.
local function intend(p)
  local r = t.record
  if intent == '0' or p.mode ~= 'x' or not r or r.queued > 0 or r.n == 0 or r.one and r.one.mode ~= 's' then
    return
  end
  call('SET', t.prefix .. 'intent:' .. t.name, fmt('%016.0f', now + intent) .. lease, 'PX', fmt('%.0f', math.ceil(intent / 1000)))
end

-- Grants to a newcomer, or has it wait if it may.
local function come()
  local p = record.parse('0000000000000000' .. '0000000000000000' .. claim .. '0000000000000000' .. now_text .. ARGV[7])
  local r = t.record
  p.attached, p.gateway, p.seq = attached, t.me, math.max(r and r.queue_last or 0, now) + 1
  local queued, places = r and r.queued or 0, r and r.queued + r.resting or 0
  if queued == 0 and rules.fits(p) and not kept_out(p) then
    local code, why = rules.grant(p, set == '', not waits and set == '' and propose ~= '0' and tonumber(propose))
    if not code then
      local key = t.prefix .. 'intent:' .. t.name
      if (intent ~= '0' or propose ~= '0') and sub(call('GET', key) or '', 17) == lease then
        call('DEL', key)
      end
      flags = flags .. 'f'
      reply.holds(p)
      return 'ok'
    elseif not waits or code ~= 'quarantined' or why == '' then
      detail = why
      return code
    end
  end
  if not waits or max_waiters > 0 and places >= max_waiters then
    t.shows = true
    if waits then
      return 'too_many_requests'
    end
    intend(p)
    return 'locked'
  end
  t.record = t.record or record.new() -- in quarantine
  rules.join()
  queue.enter(p)
  return wait_in(p, true)
end

local function acquire()
  if skewed then
    return 'clock_skew'
  end
  local h = rules.find(lease)
  if h then
    return again(h)
  end
  local p = queue.find(lease)
  if p then
    return resume(p)
  end
  local before = find_tombstone()
  if before then
    return claims.tombstone(before, claim)
  end
  if hold > 1 then
    detail = 'hold\n0'
    return 'invalid_request'
  end
  return come()
end

rules.settle()
return conclude(acquire())
