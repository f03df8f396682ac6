-- Follows gateways.lua in the scripts that only read.

-- Returns the items that the public view of a name is made of, nil if nothing is
-- remembered of it.
local function show(key)
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
  if tonumber(holders) > 1 then
    for _, text in ipairs(call('HVALS', gateways.prefix .. 'holders:' .. name)) do
      items[#items + 1] = 'H' .. text
    end
  end
  local ids = {}
  for id in string.gmatch(known, '([^:]+):%d+:%d+;') do
    ids[id] = true
  end
  if next(ids) then
    gateways.seen = false
    gateways.load(ids)
    for id in pairs(ids) do
      if not gateways.alive(id) then
        items[#items + 1] = 'D' .. id
      end
    end
  end
  return items
end
