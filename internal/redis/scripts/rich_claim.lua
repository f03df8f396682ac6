-- The rich part of claim.lua: the twin of step.claim.

-- Tells whether a token is above that of every lease that is over, and nobody
-- else's. The first claim stays. The twin of step.claimable.
local function claimable(h, token)
  local r = t.record
  if h.claimed then
    return token == tonumber(h.token)
  end
  return token > r.ended and not rules.taken(token, h.lease)
end

local function claim()
  local h, refused = claims.own(ARGV[5])
  if not h then
    return refused
  elseif skewed then
    return 'clock_skew'
  elseif h.provisional then
    detail = 'unknown'
    return 'lease_lost'
  end
  local token = tonumber(ARGV[6])
  rules.count()
  if rules.far_ahead(token) then
    detail = 'floor'
    return 'clock_skew'
  elseif not claimable(h, token) then
    detail = h.claimed and h.token or t.record.last
    return 'stale_token'
  end
  h.token, h.claimed = ARGV[6], true
  t.counter = math.max(t.counter, token)
  t.record.last = token > tonumber(t.record.last) and ARGV[6] or t.record.last
  holders.put(h)
  reply.holds(h)
  return 'ok'
end

rules.settle()
return conclude(claim())
