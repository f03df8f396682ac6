-- All of confirm.lua: the twin of step.confirm.

local function confirm()
  local h, refused = claims.own(ARGV[5])
  if not h then
    return refused
  end
  if h.stamp ~= sub(ARGV[5], 70) then
    return 'replaced'
  end
  if skewed then
    return 'clock_skew'
  end
  if h.provisional then -- what was forgotten may be that it was taken back, and granted to another
    local why = rules.unsafe()
    if why then
      detail = why
      return 'quarantined'
    end
    rules.firm(h)
    holders.put(h)
  end
  flags = h.told and '' or 'f'
  reply.holds(h)
  return 'ok'
end

rules.settle()
return conclude(confirm())
