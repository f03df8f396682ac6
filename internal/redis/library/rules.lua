-- The rules of fencing.Step that are no verbs.

-- The one rule of all modes: the permits of all, the newcomer's included, are no more than
-- it bears itself, nor than any of the others bears; and there are no more holders than a
-- name may have. Who asks for no permits counts as one.
local function has_room(p)
  local r, most = record, header[HEADER_MAX_HOLDERS]
  if not r or r[HOLDERS] == 0 then
    return true
  end
  return r[HOLDERS] + r[EXTRA_PERMITS] + p[PERMITS] <= min(tolerates(p), tolerated()) and (most == 0 or r[HOLDERS] < most)
end

-- Returns when a grant or renewal at an instant with ttl ends.
local function expires_at(h, at, ttl)
  local till = h[MAX_HOLD] > 0 and min(at + ttl, h[ACQUIRED_AT] + h[MAX_HOLD]) or at + ttl
  return h[BREAK_AT] > 0 and min(till, h[BREAK_AT]) or till
end

-- Returns the TTL that the lease was granted with.
local function granted_ttl(h)
  return h[GRANT_TTL] > 0 and h[GRANT_TTL] or h[TTL]
end

-- Sets the TTL to that of a renewal.
local function set_ttl(h, ttl)
  local granted = granted_ttl(h)
  h[GRANT_TTL], h[TTL] = granted ~= ttl and granted or 0, ttl
end

-- Counts what is left of a lease as a TTL in use.
local function note_lease_ttl(h)
  local g = load_guard()
  if g then
    note(g, h[EXPIRES_AT] - now)
  end
end

-- Lets the TTL run from now.
local function start(h)
  h[ACQUIRED_AT] = now
  h[EXPIRES_AT] = expires_at(h, now, h[TTL])
  note_lease_ttl(h)
end

-- Returns the end of a lease that lives for ttl from now, when that was set if the clocks differ,
-- and how much is left by either clock. The twin of step.endAfter.
function clocks.end_after(h, ttl)
  local at, lead = expires_at(h, now, ttl), clocks.lead()
  if lead == 0 then
    return at, 0, 0, at - now
  end
  local sent = now + lead
  local other = expires_at(h, sent, ttl)
  if lead > 0 and 2 * lead <= ttl then
    if h[EXPIRES_AT] - h[TTL] > now then
      at = max(at, min(h[EXPIRES_AT], other))
    end
    return at, 0, 0, at - sent
  end
  return at, now, sent, min(at - now, other - sent)
end

-- Sets the end of a lease. The twin of step.prolong.
function clocks.prolong(h, ttl, at, set, sent)
  set_ttl(h, ttl)
  h[EXPIRES_AT], h[SET_AT], h[SENT_AT] = at, set, sent
  doubt = doubt or sent > 0
  note_lease_ttl(h)
end

-- Returns what is left of a lease by either clock. The twin of step.sure.
function clocks.sure(h)
  local left = h[EXPIRES_AT] - now
  if not skewed then
    return left
  end
  return min(left, (h[SENT_AT] > 0 and expires_at(h, h[SENT_AT], h[TTL]) or h[EXPIRES_AT]) - header[HEADER_SENT])
end

-- Answers with a lease that is kept as it is now, of which so much is left by either clock. The
-- twin of step.tell.
function clocks.tell(h, sure)
  local text = h[LEASE_TEXT]
  if skewed then
    local at, break_at = h[EXPIRES_AT], h[BREAK_AT]
    h[EXPIRES_AT], h[BREAK_AT] = now + sure, break_at > 0 and break_at - max(0, clocks.lead()) or 0
    item(ITEM_OWN_LEASE, write_lease(h))
    h[EXPIRES_AT], h[BREAK_AT], h[LEASE_TEXT] = at, break_at, text
  else
    item(ITEM_OWN_LEASE, text)
  end
  return 'ok'
end

-- Refuses what goes on with a lease while the clocks differ. The twin of step.unsure.
function clocks.unsure(h)
  return skewed and (h[PROVISIONAL] == 1 or not live(h)) and 'clock_skew' or nil
end

-- Tells whether anything was written on the name while the clocks differed. The twin of
-- Record.doubtful.
function clocks.doubtful()
  local r = record
  if not r or r[DELAY] == '' then
    return r and r[RETRY_AT] == AFTER_SKEW
  end
  local _, _, _, sent = delay.read()
  return sent > 0 or r[RETRY_AT] == AFTER_SKEW
end

-- Puts the end of a lease right. It is no later than a TTL from now: it was set before, by whatever
-- clock. The twin of step.putHoldersRight.
function clocks.put_lease_right(h)
  if not h or h[SENT_AT] == 0 then
    return
  end
  local at = clocks.was_wrong(h[SET_AT], h[SENT_AT]) and expires_at(h, h[SENT_AT], h[TTL]) or h[EXPIRES_AT]
  h[EXPIRES_AT] = min(at, expires_at(h, now, h[TTL]))
  h[SET_AT], h[SENT_AT] = 0, 0
  put_holder(h)
end

-- Puts the end of a rest right, as the place is stored. The twin of Queue.putRight.
function clocks.put_place_right(stored)
  local p = stored and read_lease(stored)
  if not p or p[SENT_AT] == 0 then
    return
  end
  local at = clocks.was_wrong(p[SET_AT], p[SENT_AT]) and p[SENT_AT] + REST_TTL or p[EXPIRES_AT]
  p[EXPIRES_AT] = min(at, now + REST_TTL)
  p[SET_AT], p[SENT_AT] = 0, 0
  call('hset', prefix .. 'places:' .. name, p[LEASE], write_lease(p))
  call('zadd', prefix .. 'resting:' .. name, p[EXPIRES_AT], p[LEASE])
end

-- Puts right what was written on the name while the clocks differed. The twin of step.putRight.
function clocks.put_right()
  local r = record
  if r[DELAY] ~= '' then
    delay.put_right()
  end
  if r[RETRY_AT] ~= AFTER_SKEW then
    return
  end
  local noted, resting = prefix .. 'doubt:' .. name, prefix .. 'resting:' .. name
  for _, lease in ipairs(call('hkeys', noted)) do
    clocks.put_lease_right(find_holder(lease))
    clocks.put_place_right(r[RESTING] > 0 and call('hget', prefix .. 'places:' .. name, lease))
  end
  call('del', noted)
  clocks.put_lease_right(sole_holder)
  r[REST_TILL] = r[RESTING] > 0 and tonumber(call('zrange', resting, 0, 0, 'withscores')[2]) + 0 or 0
end

-- Ends the provisional state of a lease.
local function firm(h)
  remove_entry(LEASE_ENTRY, h)
  h[PROVISIONAL] = 0
  start(h)
end

-- Tells whether a token comes from a clock that was wrong.
local function far_ahead(t)
  return t > MAX_TOKEN or t > highest() and t > now + MAX_FLOOR_LEAD
end

-- Tells whether a token is above that of every lease that is over, and nobody
-- else's. The first claim stays. The twin of step.claimable.
local function claimable(h, t)
  if h[CLAIMED] == 1 then
    return t == h[TOKEN]
  elseif t <= record[ENDED_TOKEN] then
    return false
  end
  local other = holder_with(t)
  return not other or other[LEASE] == h[LEASE]
end

-- Notes the token of a grant or a claim. The twin of Record.issued.
local function issued(h)
  local r, t = record, h[TOKEN]
  if r[LAST_TOKEN] == 0 then
    r[MARK] = t
  end
  r[LAST_TOKEN] = max(r[LAST_TOKEN], t)
  if h[CLAIMED] == 1 then -- where only claims count, this may be below what the node had issued
    r[LAST_CLAIMED] = max(r[LAST_CLAIMED], t)
    if r[HIGHEST_ADMITTED] == 0 then
      r[MARK] = min(r[MARK], t)
    end
  end
end

-- Gives the lease, which makes the place a holder: all tokens are issued here. It
-- returns nil, or the code that refuses it, with its number and text. One that is not
-- firm has to be confirmed. It has the token that is proposed, if it can; 0 proposes
-- none.
local function grant(p, is_firm, propose)
  local unsafe = quarantined()
  if unsafe and (unsafe == 0 or propose == 0 or op[OP_CLAIMED] == 0) then -- nor is it a lease that a majority has
    return 'quarantined', unsafe, ''
  end
  local floor = header[HEADER_FLOOR]
  if floor > highest() and floor > now + MAX_FLOOR_LEAD then
    return 'clock_skew', 0, 'floor'
  end
  local next_token = max(counter + 1, now, floor + 1, record and record[LAST_TOKEN] + 1 or 1)
  if next_token > MAX_TOKEN then
    return 'clock_skew', 0, 'exhausted'
  end
  if not record then
    new_record()
  end
  local r = record
  if r[HOLDERS] == 0 then
    r[ENDED_TOKEN] = r[LAST_TOKEN]
  end
  if propose > 0 and (propose == next_token or not far_ahead(propose) and propose >= now - header[HEADER_MAX_SKEW] and claimable(p, propose)) then
    p[CLAIMED], next_token = 1, propose
  end
  counter = max(counter, next_token)
  p[TOKEN], p[PROVISIONAL] = next_token, is_firm and 0 or 1
  p[SLOT], p[SLOTS] = free_slots(p[MODE], p[LIMIT], p[PERMITS])
  if r[DELAY] ~= '' then
    delay.over()
  end
  issued(p)
  start(p)
  if not is_firm and p[GATEWAY] == me then -- of another gateway, that it waited was the sign of life
    hear(true)
  end
  add_holder(p)
  item(ITEM_GRANT, p[LEASE_TEXT])
  if not is_firm then
    notify(p[GATEWAY], ITEM_GRANT, p[LEASE_TEXT])
  end
end

-- Grants to the longest-waiting live waiters that fit, as many as the step may. The
-- twin of step.handOff.
local function hand_off()
  local r = record
  if not r then
    return
  end
  local retry_at = r[RETRY_AT]
  r[RETRY_AT] = more and AT_ONCE or 0
  if skewed then
    if doubt or retry_at == AFTER_SKEW then
      r[RETRY_AT] = AFTER_SKEW
    elseif r[QUEUED] > 0 and has_room(first_place()) then
      r[RETRY_AT] = retry_at > 0 and retry_at or AFTER_SKEW
    end
    return
  elseif r[QUEUED] == 0 then
    return
  elseif r[DELAY] ~= '' and delay.lasts() then
    local _, till = delay.read()
    r[RETRY_AT] = more and AT_ONCE or till
    return
  end
  while r[QUEUED] > 0 and (r[HOLDERS] == 0 or r[HOLDERS] + r[EXTRA_PERMITS] < tolerated()) do
    local p = first_place()
    if not has_room(p) then
      return
    elseif left == 0 then
      r[RETRY_AT] = AT_ONCE
      return
    end
    if grant(p, p[GATEWAY] == me and p[SET] == '', 0) then -- the floor: another gateway may do it
      local till = guard and guard[GUARD_UNTIL] or 0
      r[RETRY_AT] = now < till and till or now + HEARTBEAT
      return
    end
    left = left - 1
    remove_place(p)
  end
end

-- Adds an end and the lease to the history. It is cut, and looked after, only now and
-- then.
local function remember(entry)
  local key = prefix .. 'history:' .. name
  local length = call('rpush', key, entry)
  if length > 1 and length < 2 * MAX_HISTORY then
    return
  end
  local index = prefix .. 'histories'
  call('ltrim', key, -MAX_HISTORY, -1)
  call('zadd', index, now, name)
  if call('zcard', index) > header[HEADER_MAX_HISTORIES] then
    call('del', prefix .. 'history:' .. call('zpopmin', index)[1])
  end
end

-- Remembers how a lease, or the place of one to be, has ended.
local function entomb(h, reason, at, till, break_reason)
  if now < till then
    call('set', prefix .. 'ended:' .. name .. ':' .. h[LEASE], pack(TOMB_FORMAT, at, h[TOKEN], till, h[SECRET], reason, break_reason),
      'px', keep_ms(till - now, TOMBSTONE_TTL, TOMBSTONE_MS))
  end
end

-- Moves a holder to its tombstone and into the history. The twin of step.end.
local function end_lease(h, reason, at, break_reason)
  entomb(h, reason, at, clocks.latest(max(h[EXPIRES_AT], at + TOMBSTONE_TTL)), break_reason)
  item(ITEM_END, pack_end(reason, at, h, break_reason))
  ends = true -- save has it remembered
  remove_holder(h, at, reason)
end

-- Takes a grant back that its holder was not told of. The twin of step.undo.
local function undo(h)
  item(ITEM_LEFT, h[LEASE_TEXT])
  remove_holder(h, now)
  if h[KEEP] == 1 then
    h[TOKEN], h[SLOT], h[SLOTS], h[HOLD], h[PROVISIONAL], h[CLAIMED], h[TOLD] = 0, NO_SLOT, '', 1, 0, 0, 0
    h[EPOCH], h[BREAK_AT], h[BREAK_REASON] = 0, 0, ''
    h[TTL], h[GRANT_TTL], h[ACQUIRED_AT] = granted_ttl(h), 0, 0
    rest(h)
  end
end

-- Tells whether the time of a lease is over, or it is provisional and its gateway
-- is dead.
local function due(h)
  if skewed then
    return false
  elseif h[PROVISIONAL] == 1 then
    return not alive(h[GATEWAY])
  end
  return not live(h)
end

-- Ends a lease that an administrator ends, and remembers its token for retries. The twin
-- of step.endBroken.
local function end_broken(h, at, reason)
  record[BROKEN] = sub(record[BROKEN] .. fmt('%016d', h[TOKEN]), -16 * MAX_BROKEN)
  end_lease(h, 'broken', at, reason)
end

-- Returns how a lease ends whose time runs out, and why it was broken. The twin of
-- Holder.outOfTime.
local function out_of_time(h)
  if h[BREAK_AT] > 0 and h[EXPIRES_AT] >= h[BREAK_AT] then
    return 'broken', h[BREAK_REASON]
  end
  return h[HOLD] == 0 and 'released' or 'expired', ''
end

-- Ends a lease that is due.
local function end_overdue(h)
  local reason, why = out_of_time(h)
  if h[PROVISIONAL] == 1 then
    undo(h)
  elseif reason == 'broken' then
    end_broken(h, h[EXPIRES_AT], why)
  else
    end_lease(h, reason, h[EXPIRES_AT], '')
  end
end

-- Ends leases that are due, in order of grant: if the step may not end all, those
-- that ran out first. The twin of step.endDue.
local function end_due()
  local r = record
  if r[HOLDERS] == 0 or sole_holder and not due(sole_holder) then
    return
  end
  local all = {sole_holder}
  if not sole_holder then
    local leases, dead = call('zrangebyscore', prefix .. 'until:' .. name, 0, now, 'limit', 0, left + 1), {}
    for id, g in pairs(gateway_counts or {}) do
      if g.leases > 0 and not alive(id) then
        dead[#dead + 1] = id
      end
    end
    sort(dead)
    for _, id in ipairs(dead) do
      for _, lease in ipairs(call('zrangebyscore', prefix .. 'until:' .. name, unconfirmed_score(id), unconfirmed_score(id), 'limit', 0, left + 1)) do
        leases[#leases + 1] = lease
      end
    end
    all = leases
  end
  more = #all > left
  while #all > left do
    all[#all] = nil
  end
  left = left - #all
  if not sole_holder then
    all = holders_of(all)
  end
  for i = 1, #all do
    end_overdue(all[i])
  end
end

-- Tells whether nothing needs to be remembered of the name. The twin of
-- Record.forgotten.
local function forgotten()
  local r = record
  local till = r[FORGET_AT]
  if r[QUEUED] + r[RESTING] > 0 or till > now then
    return false
  elseif sole_holder then
    return sole_holder[PROVISIONAL] == 0 and sole_holder[EXPIRES_AT] + FORGET_AFTER <= now
  elseif r[HOLDERS] > 1 then
    local some = call('zrange', prefix .. 'until:' .. name, 0, 0, 'withscores')
    local last = call('zrange', prefix .. 'until:' .. name, -1, -1, 'withscores')
    return tonumber(some[2]) >= 0 and tonumber(last[2]) + FORGET_AFTER <= now
  end
  return true
end

-- Does what time alone has brought about on the name. The twin of step.settle.
local function settle()
  local r = record
  if not r or skewed then
    return
  end
  clocks.put_right()
  if gateway_counts then
    read_signs(gateway_counts)
    hear()
  end
  end_due()
  drop_dead()
  wake()
  hand_off()
  if not more and forgotten() then
    record = false
  end
end

-- Returns the holder with a lease id, nil if there is none. One that is due, which the
-- step has not come to, is ended before it is asked about. The twin of step.holding.
local function find(lease)
  local h = find_holder(lease)
  if h and due(h) then
    end_overdue(h)
    return nil
  end
  return h
end

-- Returns the tombstone of a lease id, nil if nothing is known (any more).
local function tombstone(lease)
  local found = call('get', prefix .. 'ended:' .. name .. ':' .. lease)
  local tomb = found and {unpack(TOMB_FORMAT, found)}
  return tomb and now < tomb[TOMB_UNTIL] and tomb or nil
end

-- Refuses a lease for a reason.
local function lost(reason)
  text = reason
  return 'lease_lost'
end

-- Says how the lease of a tombstone was lost. The twin of step.lostTo.
local function lost_to(tomb, secret)
  local reason = tomb[TOMB_REASON]
  if tomb[TOMB_SECRET] ~= secret then
    return lost('unknown')
  elseif reason == 'expired' then
    number = max(now - tomb[TOMB_AT], 0) -- the clock may have been set back
    if record and record[LAST_TOKEN] > tomb[TOMB_TOKEN] then
      token = record[LAST_TOKEN]
      return lost('superseded')
    end
  end
  present = tomb[TOMB_BREAK_REASON]
  return lost(reason)
end

-- Returns the holder of the operation's lease id, or nil and the code that refuses
-- it. Without skew it is live. The twin of step.own.
local function own()
  local h = find(op[OP_LEASE])
  if h then
    if h[SECRET] == op[OP_SECRET] then
      return h
    end
    return nil, lost('unknown')
  end
  local tomb = tombstone(op[OP_LEASE])
  if tomb and (not skewed or tomb[TOMB_REASON] ~= 'expired') then
    return nil, lost_to(tomb, op[OP_SECRET])
  elseif skewed then
    return nil, 'clock_skew'
  end
  return nil, lost('unknown')
end

-- Refuses what may not be changed while something may have been forgotten.
local function refuse_quarantined(us)
  number = us
  return 'quarantined'
end
