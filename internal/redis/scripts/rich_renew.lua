-- The rich part of renew.lua: the twin of step.renew.

local function renew()
  local h, refused = claims.own(ARGV[5])
  if not h then
    return refused
  end
  if not h.provisional and now >= h.expires_at then -- only seen here when skewed: an expiry is not judged then
    return 'clock_skew'
  end
  local mode, limit = sub(ARGV[7], 1, 1), sub(ARGV[7], 2)
  if mode == 'x' and h.mode == 's' then
    detail = 'mode'
    return 'invalid_request'
  elseif mode == 's' and h.mode == 's' and limit ~= h.limit then
    detail = 'limit\n' .. h.limit
    return 'invalid_request'
  end
  if h.provisional then -- its holder knows: a retry was answered
    rules.firm(h)
  end
  local ttl = ARGV[6] ~= '0' and ARGV[6] or h.grant_ttl
  detail = fmt('%.0f', h.expires_at - now)
  h.ttl, h.expires_at, h.told = ttl, rules.expires_at(h, ttl), true
  rules.uses(h)
  if mode == 's' and h.mode == 'x' then
    h.mode, h.limit, h.slot = 's', limit, holders.free_slot('s', limit)
  end
  holders.put(h)
  reply.holds(h)
  return 'ok'
end

rules.settle()
return conclude(renew())
