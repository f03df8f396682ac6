#!lua
-- Grants a free name, or answers with the lease that this lease id has already.
--
-- KEYS  as in the prelude
-- ARGV  6 lease, public part   7 secret, its hash   8 stamp of the request
--       9 ttl, us   10 max_hold, us, 0 for none   11 rest of the record
-- Reply ok with the record; locked with the record; lease_lost; clock_skew

local MAX_FLOOR_LEAD = 3600000000 -- us, fencing.MaxFloorLead
local MAX_TOKEN = 9007199254740991 -- fencing.MaxToken

if skewed then
  return finish('clock_skew')
end
if mode ~= '' and lease == ARGV[6] then
  if secret ~= ARGV[7] then
    reason = 'unknown'
    return finish('lease_lost')
  end
  if stamp == ARGV[8] then
    flags = flags .. 'f'
  elseif stamp ~= '' then
    stamp, changed = '', true -- another request took over: nobody may take the grant back
  end
  return finish('ok', true)
end

local before = tombstone(ARGV[6])
if before then
  return finish(lost_to(before, ARGV[7]))
end
if mode ~= '' then
  return finish('locked', true)
end

-- The only place that issues a token. The twin of fencing.nextToken.
local floor, highest = tonumber(ARGV[4]), tonumber(call('GET', KEYS[2]) or 0)
if floor > highest and floor > now + MAX_FLOOR_LEAD then
  reason = 'floor'
  return finish('clock_skew')
end
local issued = math.max(highest + 1, now, floor + 1, last + 1)
if issued > MAX_TOKEN then
  reason = 'exhausted'
  return finish('clock_skew')
end

expires_at = now + ARGV[9]
if ARGV[10] ~= '0' then
  expires_at = math.min(expires_at, now + ARGV[10])
end
counter = issued == now and now_text or fmt('%.0f', issued)
last, token, mode, lease, secret, stamp = counter, counter, 'exclusive', ARGV[6], ARGV[7], ARGV[8]
tail = '1\n' .. ARGV[9] .. '\n' .. ARGV[9] .. '\n' .. ARGV[10] .. '\n' .. now_text .. '\n' .. ARGV[11]
known, changed, flags = true, true, flags .. 'f'
return finish('ok', true)
