-- Stands behind words.lua where a lease is granted or renewed, and in rich(): what
-- the partition remembers in order to be careful. The twin of fencing.Quarantine.
--
-- fencepost:{N}:guard
--    1-16 until   us, nothing new is granted before
--   17-32 period  us, when the present period of TTLs began
--   33-48 ttl     us, the longest granted or renewed in it
--   49-64 before  us, the same of the period before
--   65-80 born    us, when this was first written: it differs once it was lost
--   then lines: format, partitions, server

local GUARD = sub(KEYS[2], 1, -6) .. 'guard'

-- Returns why nothing new may be granted, the detail of `quarantined`; nil if it
-- may. highest is the highest token issued. The twin of step.quarantined.
local function unsafe(guard, highest)
  if not guard or sub(ARGV[2], 17, 17) == 'n' then
    flags = flags .. 'u'
    return ''
  end
  local floor = tonumber(ARGV[4])
  if floor > highest and floor <= now + MAX_FLOOR_LEAD then
    flags = flags .. 'b'
    if sub(ARGV[2], 17, 17) == 'h' then
      return ''
    end
  end
  local till = tonumber(sub(guard, 1, 16))
  return now < till and fmt('%.0f', till - now) or nil
end

-- Returns the guard with a TTL in use counted. The twin of Quarantine.note.
local function used(guard, ttl)
  local PERIOD = 600000000 -- us, fencing.ttlPeriod
  local period, longest = tonumber(sub(guard, 17, 32)), tonumber(sub(guard, 33, 48))
  if now >= period + PERIOD then
    local began = now - now % PERIOD
    local before = began == period + PERIOD and sub(guard, 33, 48) or '0000000000000000'
    return sub(guard, 1, 16) .. fmt('%016.0f%016.0f', began, math.max(ttl, 0)) .. before .. sub(guard, 65)
  elseif ttl > longest then
    return sub(guard, 1, 32) .. fmt('%016.0f', ttl) .. sub(guard, 49)
  end
  return guard
end
