-- Follows gateways.lua where the holders of a name are shown.

-- Returns the score among until of what a gateway has not confirmed.
local function rank(gateway)
  return fmt('%.0f', -1 - (tonumber(sub(gateway, 1, 12), 16) or 0))
end

-- Adds to items what is shown of a name with several holders: N, how many are live, a
-- newline, when the last of them ends; and at most most of them as H, those that end
-- first and after them provisional ones. leases are the provisional leases by gateway,
-- whose signs of life have been read. The twin of Record.live.
local function show_holders(items, name, leases, most)
  local until_key = gateways.prefix .. 'until:' .. name
  local alive, count, ids = {}, call('ZCOUNT', until_key, '(' .. now_text, '+inf'), {}
  for id, n in pairs(leases) do
    if n > 0 and gateways.alive(id) then
      alive[#alive + 1], count = id, count + n
    end
  end
  table.sort(alive)
  if count > 0 then
    ids = call('ZRANGEBYSCORE', until_key, '(' .. now_text, '+inf', 'LIMIT', '0', most)
  end
  for _, id in ipairs(alive) do
    local score = rank(id)
    for _, lease in ipairs(#ids < most and call('ZRANGEBYSCORE', until_key, score, score, 'LIMIT', '0', most - #ids) or {}) do
      ids[#ids + 1] = lease
    end
  end
  local last = call('ZRANGE', until_key, '-1', '-1', 'WITHSCORES')[2] or '0'
  items[#items + 1] = 'N' .. count .. '\n' .. fmt('%.0f', math.max(tonumber(last), 0))
  for i = 1, #ids, 500 do
    for _, text in ipairs(call('HMGET', gateways.prefix .. 'holders:' .. name, unpack(ids, i, math.min(i + 499, #ids)))) do
      items[#items + 1] = 'H' .. text
    end
  end
end
