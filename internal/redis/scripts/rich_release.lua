-- The rich part of release.lua: the twin of step.release.

local function release()
  local h, refused = claims.own(ARGV[5])
  if not h then
    if detail == 'released' then -- a retry
      detail = ''
      return 'ok'
    end
    return refused
  end
  local stream, hold = string.match(sub(ARGV[5], 70), '^([^\n]*)\n(%d*)$')
  if stream and stream ~= '' and stream ~= h.attached then
    return 'ok' -- a newer request has the lease
  end
  hold = tonumber(hold)
  if not hold then
    rules.finish(h, 'released', now)
    return 'ok'
  end
  if h.provisional then -- as in renew
    rules.firm(h)
  elseif now >= h.expires_at then
    return 'clock_skew'
  end
  h.hold, h.told = math.min(h.hold, hold - 1), true
  holders.put(h)
  reply.holds(h)
  return 'ok'
end

rules.settle()
return conclude(release())
