-- What the calls of a run have come to, beside their records: one script for all that changes it.
--
-- KEYS[1] the recorded calls (a hash)   KEYS[2] what they came to (a hash)
-- KEYS[3] calls under way, until when they count, in ms (a sorted set)   KEYS[4] bodies (a hash), for `record` alone
-- ARGV[1] what is done, then
--   reserve  call, ms that it counts without an end, bounds of calls, tokens and USD (0 = none),
--            then for each role its name and USD per million tokens: prompt, cached prompt, completion
--            -> 'ok', 'uncounted' (the records were never summed), or {'spent', what, how much}
--   renew    call, ms that it counts from now on   -> 'ok'
--   release  call   -> 'ok'
--   record   field, call, record, how many words follow, of name and number for each count that grows; where the bodies
--            that it names are stored here too, then as `put_bodies` (infra/blobs.py) has them
--            -> 'ok', the record that holds the field already, or the names of bodies that are missing: nothing is recorded
--   sum      how many records were summed, then name and number for each count
--            -> 'ok', or 'again' where there are others by now
-- What calls came to is counted in the step that records a call, so that it is counted once whoever repeats it; where
-- that was lost, or calls were recorded before anybody counted, nothing is counted until the records are summed.
local calls, spent, under_way = KEYS[1], KEYS[2], KEYS[3]
local op = ARGV[1]

local function now_ms()
  local clock = redis.call('TIME')
  return clock[1] * 1000 + math.floor(clock[2] / 1000)
end

local function counted()
  return redis.call('EXISTS', spent) == 1 or redis.call('HLEN', calls) == 0
end

local function grow(from, to)
  redis.call('HINCRBY', spent, 'calls', 0)
  for i = from, to, 2 do redis.call('HINCRBY', spent, ARGV[i], ARGV[i + 1]) end
end

if op == 'reserve' then
  if not counted() then return 'uncounted' end
  local call, now = ARGV[2], now_ms()
  redis.call('ZREMRANGEBYSCORE', under_way, '-inf', now)
  local max_calls, max_tokens, max_cost = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
  local made = tonumber(redis.call('HGET', spent, 'calls') or 0)
  local others = redis.call('ZCARD', under_way)
  if redis.call('ZSCORE', under_way, call) then others = others - 1 end
  if max_calls > 0 and made + others >= max_calls then return {'spent', 'calls', tostring(made + others)} end
  local tokens, cost = 0, 0
  for i = 7, #ARGV, 4 do
    local role = ARGV[i]
    local counts = redis.call('HMGET', spent, role .. ':prompt', role .. ':cached', role .. ':completion')
    local prompt, cached, completion = tonumber(counts[1] or 0), tonumber(counts[2] or 0), tonumber(counts[3] or 0)
    tokens = tokens + prompt + completion
    cost = cost + ((prompt - cached) * ARGV[i + 1] + cached * ARGV[i + 2] + completion * ARGV[i + 3]) / 1000000
  end
  if max_tokens > 0 and tokens >= max_tokens then return {'spent', 'tokens', string.format('%.0f', tokens)} end
  if max_cost > 0 and cost >= max_cost then return {'spent', 'cost', string.format('%.17g', cost)} end
  redis.call('ZADD', under_way, now + ARGV[3], call)
  return 'ok'
end

if op == 'renew' then
  redis.call('ZADD', under_way, 'XX', now_ms() + ARGV[3], ARGV[2])
  return 'ok'
end

if op == 'release' then
  redis.call('ZREM', under_way, ARGV[2])
  return 'ok'
end

if op == 'record' then
  local last = 5 + ARGV[5]
  if KEYS[4] then
    local missing = put_bodies(KEYS[4], last + 1)
    if #missing > 0 then return missing end
  end
  local whole = counted()
  redis.call('ZREM', under_way, ARGV[3])
  if redis.call('HSETNX', calls, ARGV[2], ARGV[4]) == 0 then return redis.call('HGET', calls, ARGV[2]) end
  if whole then grow(6, last) end
  return 'ok'
end

-- sum
if redis.call('EXISTS', spent) == 1 then return 'ok' end
if redis.call('HLEN', calls) ~= tonumber(ARGV[2]) then return 'again' end
grow(3, #ARGV)
return 'ok'
