-- Follows gateways.lua in the scripts that only read.

-- Returns the items that the public view of a name is made of, with at most most of its
-- holders; nil if nothing is remembered of it.
local function show(key, most)
  local record = redis.pcall('GET', key)
  if type(record) == 'table' then
    return {'not a string'}
  end
  if not record or sub(record, 1, 1) ~= 'q' then
    return record and {record}
  end
  local items = {record}
  local name = sub(key, #gateways.prefix + 6)
  local known, holders = string.match(record, '^([^\n]*)\n(%d+)\n', 131)
  local leases = {}
  for id, n in string.gmatch(known, '([^:]+):%d+:(%d+);') do
    leases[id] = tonumber(n)
  end
  if next(leases) then
    gateways.seen = false
    gateways.load(leases)
    for id in pairs(leases) do
      if not gateways.alive(id) then
        items[#items + 1] = 'D' .. id
      end
    end
  end
  if tonumber(holders) > 1 then
    show_holders(items, name, leases, most)
  end
  return items
end
