-- The rich part of break.lua: the twin of step.break_.

local function break_token(token)
  local r = t.record
  local all, broken = {r and r.one or nil}, r and r.broken or ''
  if r and r.n > 1 then
    all = holders.of(call('HKEYS', holders.ALL))
  end
  for _, h in ipairs(all) do
    if h.token == token and rules.due(h) then
      rules.lapse(h)
      break
    elseif h.token == token then
      r.broken = sub(broken .. token, -16 * MAX_BROKEN)
      rules.finish(h, 'broken', now)
      return 'ok'
    end
  end
  for i = 1, #broken, 16 do
    if sub(broken, i, i + 15) == token then
      return 'ok'
    end
  end
  if skewed then
    return 'clock_skew'
  end
  t.shows = true
  return 'stale_token'
end

rules.settle()
return conclude(break_token(ARGV[5]))
