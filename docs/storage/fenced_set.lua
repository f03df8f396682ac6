-- KEYS[1]: a hash; ARGV[1]: the fencing token; ARGV[2]: the value. 1: written, 0: you are stale, stop
local token = ARGV[1]
if not token:match('^[1-9]%d*$') or #token > 16 or tonumber(token) > 9007199254740991 then
    return redis.error_reply('ERR no fencing token')
end
if tonumber(token) < tonumber(redis.call('HGET', KEYS[1], 'fence') or '0') then
    return 0
end
redis.call('HSET', KEYS[1], 'fence', token, 'value', ARGV[2])
return 1
