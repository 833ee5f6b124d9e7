-- A new generation of a run's bank, owned by the caller. The one that serves goes on serving.
--
-- KEYS[1] the run's bank (a hash): number -> generations begun so far, owner -> the one begun last, term -> its owner's,
--         serving -> '<generation> <version>', doubt -> why the next one is wanted, 'retired/<generation>' -> ms
-- ARGV[1] what its name begins with   ARGV[2] hex digits that no earlier one had
-- ARGV[3] the term of the caller's lease, or '' for somebody who holds none
--
-- Answers its name; nothing where a later term has begun one. An earlier one that was begun and never served is retired:
-- its owner is dead, or slept.
local owner, serving, term = unpack(redis.call('HMGET', KEYS[1], 'owner', 'serving', 'term'))
if ARGV[3] ~= '' then
  if term and tonumber(ARGV[3]) < tonumber(term) then return false end
  redis.call('HSET', KEYS[1], 'term', ARGV[3])
end
local name = ARGV[1] .. redis.call('HINCRBY', KEYS[1], 'number', 1) .. '-' .. ARGV[2]
if owner and not (serving and string.match(serving, '^%S+') == owner) then
  local time = redis.call('TIME')
  redis.call('HSET', KEYS[1], 'retired/' .. owner, time[1] * 1000 + math.floor(time[2] / 1000))
end
redis.call('HSET', KEYS[1], 'owner', name)
return name
