-- The twins of the rules of fencing.Step that are no verbs.

local rules = {}

-- The one rule of all modes: with the newcomer there are no more holders than it
-- bears itself, nor than any of the others bears, nor than a name may have.
function rules.fits(p)
  local r = t.record
  return not r or r.n == 0 or r.n < math.min(rules.bears(p), holders.tolerate())
end

-- Returns how many holders a newcomer bears, itself included.
function rules.bears(p)
  local most = tonumber(sub(ARGV[2], 22, 27)) -- max_holders
  return math.min(holders.tolerates(p), most > 0 and most or math.huge)
end

-- Returns when a grant or renewal with ttl ends.
function rules.expires_at(h, ttl)
  local max_hold, till = tonumber(h.max_hold), now + ttl
  return max_hold > 0 and math.min(till, h.acquired_at + max_hold) or till
end

-- Returns the partition's guard, false if there is none.
function rules.guard()
  if t.guard == nil then
    t.guard = call('GET', GUARD)
    t.guarded = t.guard
  end
  return t.guard
end

-- Counts what is left of a lease as a TTL in use.
function rules.uses(h)
  t.guard = rules.guard() and used(t.guard, h.expires_at - now)
end

-- Lets the TTL run from now.
function rules.start(h)
  h.acquired_at = now
  h.expires_at = rules.expires_at(h, h.ttl)
  rules.uses(h)
end

-- Ends the provisional state of a lease.
function rules.firm(h)
  holders.settled(h)
  h.provisional = false
  rules.start(h)
end

-- This gateway has a waiter or a provisional lease here from now on.
function rules.join()
  gateways.load(t.record and t.record.gateways or {})
  gateways.hear(true)
end

-- Reads the partition's counter.
function rules.count()
  if not t.counter then
    t.highest = tonumber(call('GET', KEYS[2]) or 0)
    t.counter = t.highest
  end
end

-- Tells whether a token comes from a clock that was wrong.
function rules.far_ahead(token)
  return token > MAX_TOKEN or token > t.counter and token > now + MAX_FLOOR_LEAD
end

-- Tells whether somebody else holds the name with a token.
function rules.taken(token, lease)
  local r = t.record
  if r.one then
    return r.one.lease ~= lease and tonumber(r.one.token) == token
  elseif r.n > 1 then
    for _, text in ipairs(call('HVALS', holders.ALL)) do
      if tonumber(sub(text, 1, 16)) == token and sub(text, 76, 101) ~= lease then
        return true
      end
    end
  end
  return false
end

-- Returns why nothing new may be granted, or be made firm: unsafe in guard.lua.
function rules.unsafe()
  rules.count()
  return unsafe(rules.guard(), t.counter)
end

-- Gives the lease, which makes the place a holder, or returns the code that
-- refuses it, and a detail. One that is not firm has to be confirmed. With
-- acquire.lua it issues all tokens. It has the one that is proposed, if it can.
function rules.grant(p, is_firm, propose)
  local why = rules.unsafe()
  if why then
    return 'quarantined', why
  end
  local floor = tonumber(ARGV[4])
  if floor > t.counter and floor > now + MAX_FLOOR_LEAD then
    return 'clock_skew', 'floor'
  end
  local token = math.max(t.counter + 1, now, floor + 1, t.record and t.record.last + 1 or 1)
  if token > MAX_TOKEN then
    return 'clock_skew', 'exhausted'
  end
  t.record = t.record or record.new()
  if t.record.n == 0 then
    t.record.ended = tonumber(t.record.last)
  end
  if propose and (propose == token or propose > t.record.ended and propose >= now - MAX_SKEW and not rules.far_ahead(propose)
    and not rules.taken(propose, p.lease)) then
    p.claimed, token = true, propose
  end
  t.counter = math.max(t.counter, token)
  p.token, p.slot, p.provisional = fmt('%016.0f', token), holders.free_slot(p.mode, p.limit), not is_firm
  if token > tonumber(t.record.last) then
    t.record.last = p.token
  end
  rules.start(p)
  if not is_firm and p.gateway == t.me then -- of another gateway, that it waited was the sign of life
    rules.join()
  end
  t.granted[#t.granted + 1] = 'G' .. holders.add(p)
  t.leases[#t.leases + 1] = p
end

-- Grants to the longest-waiting live waiters that fit, as many as the step may. The
-- twin of step.handOff.
function rules.hand_off()
  local HEARTBEAT = 1000000 -- us, fencing.HeartbeatInterval
  local r = t.record
  if not r then
    return
  end
  local stuck = r.stuck
  r.stuck = t.more and AT_ONCE or 0
  if r.queued == 0 then
    return
  end
  if skewed then
    if rules.fits(queue.first()) then
      r.stuck = stuck > 0 and stuck or now
    end
    return
  end
  while r.queued > 0 and (r.n == 0 or r.n < holders.tolerate()) do
    local p = queue.first()
    if r.n > 0 and r.n >= rules.bears(p) then
      return
    end
    if t.room == 0 then
      r.stuck = AT_ONCE
      return
    end
    if rules.grant(p, p.gateway == t.me and p.set == '') then -- the floor: another gateway may do it
      local till = tonumber(sub(t.guard or '0', 1, 16))
      r.stuck = now < till and till or now + HEARTBEAT
      return
    end
    t.room = t.room - 1
    queue.remove(p)
  end
end

-- Moves a holder to its tombstone and into the history. The twin of step.end.
function rules.finish(h, reason, at)
  local at_text, text = fmt('%016.0f', at), h.text
  local till = math.max(h.expires_at, at + TOMBSTONE_TTL)
  if now < till then
    call('SET', t.prefix .. 'ended:' .. t.name .. ':' .. h.lease, at_text .. sub(text, 1, 75) .. reason,
      'PX', px(till - now, TOMBSTONE_TTL, TOMBSTONE_PX))
  end
  local item = 'E' .. reason .. '\n' .. at_text
  local ended = t.ended
  ended[#ended + 1] = item
  ended[#ended + 1] = text
  remember(item, text)
  holders.remove(h, at)
end

-- Takes a grant back that its holder was not told of. The twin of step.undo.
function rules.undo(h)
  local left = t.left
  left[#left + 1] = 'L'
  left[#left + 1] = h.text
  holders.remove(h, now)
  if h.keep == 'k' then
    h.token, h.slot, h.hold, h.ttl, h.acquired_at = '0000000000000000', '-1', '1', h.grant_ttl, 0
    h.provisional, h.claimed, h.told = false, false, false
    queue.rest(h)
  end
end

-- Tells whether the time of a lease is over, or it is provisional and its gateway
-- is dead.
function rules.due(h)
  if skewed then
    return false
  elseif h.provisional then
    gateways.load(t.record.gateways)
    return not gateways.alive(h.gateway)
  end
  return now >= h.expires_at
end

-- Ends a lease that is due.
function rules.lapse(h)
  if h.provisional then
    rules.undo(h)
  else
    rules.finish(h, 'expired', h.expires_at)
  end
end

-- Returns the holder with a lease, nil if there is none. One that is due, which the
-- step has not come to, is ended before it is asked about. The twin of step.holding.
function rules.find(lease)
  local h = holders.find(lease)
  if h and rules.due(h) then
    rules.lapse(h)
    return nil
  end
  return h
end

-- Ends leases that are due, in order of grant: if the step may not end all, those
-- that ran out first. The twin of step.endDue.
function rules.settle_holders()
  local r, due = t.record, {}
  if r.one then
    due = rules.due(r.one) and {r.one} or due
  elseif r.n > 1 then
    local leases = call('ZRANGEBYSCORE', holders.UNTIL, '0', now_text, 'LIMIT', '0', t.room + 1)
    local dead = {}
    for id, g in pairs(r.gateways) do
      if g.leases > 0 and not gateways.alive(id) then
        dead[#dead + 1] = id
      end
    end
    table.sort(dead)
    for _, id in ipairs(dead) do
      local rank = rank(id)
      for _, lease in ipairs(call('ZRANGEBYSCORE', holders.UNTIL, rank, rank, 'LIMIT', '0', t.room + 1)) do
        leases[#leases + 1] = lease
      end
    end
    if #leases > t.room then
      leases = {unpack(leases, 1, t.room + 1)}
    end
    due = leases
  end
  t.more = #due > t.room
  if t.more then
    due[#due] = nil
  end
  t.room = t.room - #due
  if r.n > 1 then
    due = holders.of(due)
  end
  for _, h in ipairs(due) do
    rules.lapse(h)
  end
end

-- Does what time alone has brought about on the name. The twin of step.settle.
function rules.settle()
  local r = t.record
  if not r or skewed then
    return
  end
  if next(r.gateways) then
    gateways.load(r.gateways)
    gateways.hear()
  end
  rules.settle_holders()
  queue.drop_dead()
  queue.wake()
  rules.hand_off()
  if r.n + r.queued + r.resting == 0 and r.idle_since + FORGET_AFTER <= now then
    t.record = false
  end
end
