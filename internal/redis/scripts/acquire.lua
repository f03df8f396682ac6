#!lua
-- Grants a free name, or answers with the lease that this lease id has already.
--
-- KEYS  as in the prelude
-- ARGV  4 claim: secret, its hash; lease, public part; stamp of the request
--       5 floor, the highest token the gateway has seen from this partition
--       6 life, us: ttl, bounded by max_hold   7 tail of the record
-- Reply ok, with the record unless it grants now; locked with the record;
--       lease_lost; clock_skew

local MAX_FLOOR_LEAD = 3600000000 -- us, fencing.MaxFloorLead
local MAX_TOKEN = 9007199254740991 -- fencing.MaxToken

local claim = ARGV[4]
if skewed then
  return finish('clock_skew')
end
if held and sub(stored, 110, 135) == sub(claim, 44, 69) then
  if sub(stored, 67, 109) ~= sub(claim, 1, 43) then
    detail = 'unknown'
    return finish('lease_lost')
  end
  if sub(stored, 136, 151) == sub(claim, 70) then
    flags = flags .. 'f'
  else -- another request took over: nobody may take the grant back
    record = sub(stored, 1, 135) .. NO_STAMP .. sub(stored, 152)
  end
  return finish('ok', true)
end

local before = find_tombstone()
if before then
  return finish(lost_to(before, sub(claim, 1, 43)))
end
if held then
  return finish('locked', true)
end

-- The only place that issues a token. The twin of fencing.nextToken.
local floor, highest = tonumber(ARGV[5]), tonumber(call('GET', KEYS[2]) or 0)
if floor > highest and floor > now + MAX_FLOOR_LEAD then
  detail = 'floor'
  return finish('clock_skew')
end
local issued = math.max(highest + 1, now, floor + 1, record and sub(record, 35, 50) + 1 or 1)
if issued > MAX_TOKEN then
  detail = 'exhausted'
  return finish('clock_skew')
end
raise = fmt('%.0f', issued - highest)

detail = (issued == now and now_text or fmt('%016.0f', issued)) .. fmt('%016.0f', now + ARGV[6])
record = (record and 'x' .. sub(record, 2, 34) or NEW) .. detail .. claim .. now_text .. ARGV[7]
  .. (record and sub(record, 51) or '')
held, flags = true, flags .. 'fg'
return finish('ok')
