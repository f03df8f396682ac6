#!lua
-- Grants a name, lets the request join its queue, or answers with the lease or
-- the place that this lease id has already.
--
-- KEYS  as in the prelude
-- ARGV  5 claim: secret, its hash; lease, public part; stamp of the request; behind
--         them, unless it is for one exclusive lease and does not wait, lines: 'w'
--         for one that does, 'r' for what only the rich rules know, 'i' for one with
--         an intent or a proposal, 'm' for one that names its mode; hold; 'w' if it
--         waits; 'a' if a gateway asks again for it; max_waiters; intent, us; the
--         proposed token, 0 for none; the mode, '-' if none is named; set, @ for a stream
--       6 life, us: ttl, bounded by max_hold
--       7 tail of the holding, from mode on
-- Reply ok with the lease or the place; quarantined; locked and too_many_requests with the
--       record; lease_lost; invalid_request; conflict; clock_skew

local claim, ask = ARGV[5], ''
if #claim > 85 then
  claim, ask = sub(claim, 1, 85), sub(claim, 86, 86)
end
if kind == 'q' or ask == 'r' then
  return rich(now, now_text, skewed, stored)
end
if skewed then
  return finish('clock_skew')
end
if held and sub(stored, 126, 151) == sub(claim, 44, 69) then
  if sub(stored, 83, 125) ~= sub(claim, 1, 43) then
    detail = 'unknown'
    return finish('lease_lost')
  end
  local OWNER = '^%w*\n%d*\n%d+\n%-?%d+\n%d+\n%d+\n%d+\n%d+\n[^\n]*\n([^\n]*)\n'
  local owner, named = string.match(stored, OWNER, 203), string.match(ARGV[7], OWNER, 4)
  if named ~= '' and named ~= owner then -- of what it may name, the rest is alike: the twin of AcquireRequest.Contradicts
    detail = 'owner\n' .. owner
    return finish('conflict')
  end
  local stamp, told = sub(stored, 152, 167), string.find(sub(stored, 201, 201), '%u')
  if stamp ~= sub(claim, 70) and stamp ~= NO_STAMP and not told then -- what was forgotten may be that it was taken back, and granted to another
    local pair = call('MGET', KEYS[2], GUARD)
    local why = unsafe(pair[2], tonumber(pair[1] or 0))
    if why then
      detail = why
      return finish('quarantined')
    end
  end
  if stamp ~= sub(claim, 70) then -- another request took over: nobody may take the grant back
    stamp = NO_STAMP
    record = sub(stored, 1, 151) .. stamp .. sub(stored, 168)
  end
  if stamp == sub(claim, 70) and not told then
    flags = flags .. 'f'
  end
  return finish('ok', true)
end

local before = find_tombstone()
if before then
  return finish(lost_to(before, sub(claim, 1, 43), record and sub(record, 51, 66) or 0))
end
if held then
  if ask == 'w' then
    return rich(now, now_text, skewed, stored)
  end
  return finish('locked', true)
end

-- One of the two places that issue a token; the other is in rich_grant.lua. The
-- twin of fencing.nextToken.
local stored_pair = call('MGET', KEYS[2], GUARD)
local floor, highest = tonumber(ARGV[4]), tonumber(stored_pair[1] or 0)
local why = unsafe(stored_pair[2], highest)
if why then
  if ask == 'w' and why ~= '' then
    return rich(now, now_text, skewed, stored)
  end
  detail = why
  return finish('quarantined')
end
if floor > highest and floor > now + MAX_FLOOR_LEAD then
  detail = 'floor'
  return finish('clock_skew')
end
local issued = math.max(highest + 1, now, floor + 1, record and sub(record, 51, 66) + 1 or 1)
if issued > MAX_TOKEN then
  detail = 'exhausted'
  return finish('clock_skew')
end
local tail = ARGV[7]
if ask == 'i' then
  local propose = tonumber(string.match(ARGV[5], '^.\n%d+\n.\n.\n%d+\n%d+\n(%d+)\n', 86))
  if propose == issued or propose >= now - MAX_SKEW and propose > (record and tonumber(sub(record, 51, 66)) or 0) and propose <= MAX_TOKEN
    and (propose <= highest or propose <= now + MAX_FLOOR_LEAD) then
    issued, tail = propose, sub(tail, 1, 1) .. 'c' .. sub(tail, 3)
  end
end
if issued > highest then
  raise = fmt('%.0f', issued - highest)
end

local token = issued == now and now_text or fmt('%016.0f', issued)
detail = token .. fmt('%016.0f', now + ARGV[6])
record = (record and 'x' .. sub(record, 2, 18) .. sub(record, 51, 66) .. sub(record, 35, 50) or NEW .. now_text) .. detail .. claim .. now_text .. now_text .. tail
  .. (record and sub(record, 67) or '')
held, made, flags = true, true, flags .. 'fg'
if ask == 'i' then
  local key = sub(KEYS[2], 1, -6) .. 'intent:' .. ARGV[3]
  if sub(call('GET', key) or '', 17) == sub(claim, 44, 69) then
    call('DEL', key)
  end
end
guard = used(stored_pair[2], tonumber(ARGV[6]))
if guard == stored_pair[2] then
  guard = nil
end
return finish('ok')
