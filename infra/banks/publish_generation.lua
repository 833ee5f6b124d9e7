-- Publish a version of a run's bank; where another generation served so far, it is retired.
--
-- KEYS[1] the run's bank (begin_generation.lua)   KEYS[2] the run's index   KEYS[3] its log (append.lua)
-- ARGV[1] generation   ARGV[2] version
-- ARGV[3] stream, ARGV[4] version, ARGV[5] sha of the event that made the version, or three times ''
--
-- Answers 'ok'; 'dead' where the generation is not the one that was begun last; 'unfounded' where the log does not hold
-- that event any more, or another one in its place.
local owner, serving = unpack(redis.call('HMGET', KEYS[1], 'owner', 'serving'))
if owner ~= ARGV[1] then return 'dead' end
if ARGV[3] ~= '' then
  local at, trimmed = unpack(redis.call('HMGET', KEYS[2], ARGV[3] .. '/' .. ARGV[4], '@trimmed'))
  at, trimmed = tonumber(at or '0'), tonumber(trimmed or '0')
  -- What an archive holds is not lost.
  if at == 0 or at > trimmed then
    local entry, sha = redis.call('XRANGE', KEYS[3], at .. '-0', at .. '-0')[1], nil
    for j = 1, entry and #entry[2] or 0, 2 do
      if entry[2][j] == 'sha' then sha = entry[2][j + 1] end
    end
    if sha ~= ARGV[5] then return 'unfounded' end
  end
end
local before, version
if serving then before, version = string.match(serving, '^(%S+) (%d+)$') end
if before ~= ARGV[1] then
  if before then
    local time = redis.call('TIME')
    redis.call('HSET', KEYS[1], 'retired/' .. before, time[1] * 1000 + math.floor(time[2] / 1000))
  end
  redis.call('HDEL', KEYS[1], 'doubt')
elseif tonumber(version) >= tonumber(ARGV[2]) then
  return 'ok'
end
redis.call('HSET', KEYS[1], 'serving', ARGV[1] .. ' ' .. ARGV[2])
return 'ok'
