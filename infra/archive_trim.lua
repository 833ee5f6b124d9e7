-- Let go of the beginning of a run's log, which lies in its archive. Some of its events stay, in another key.
--
-- KEYS[1] the run's log   KEYS[2] its index   KEYS[3] events that stay (a stream)
-- ARGV[1] the last position to go   ARGV[2] how many of them have events that stay   ARGV[3...] these positions, ascending
-- then the episodes whose folds go: what the index says of each becomes a line, where nothing of it is behind the last
-- position. archived_rows.lua precedes this script, and says how.
--
-- Of the index it needs '@head', '@archived' -> last position that the archive is recorded to hold; it sets '@trimmed'.
-- Answers the last position that is gone.
local log, index, kept, upto = KEYS[1], KEYS[2], KEYS[3], tonumber(ARGV[1])
local head, archived, trimmed = unpack(redis.call('HMGET', index, '@head', '@archived', '@trimmed'))
head, archived, trimmed = tonumber(head or '0'), tonumber(archived or '0'), tonumber(trimmed or '0')
if upto > archived or upto >= head then
  return redis.error_reply('BROKEN position ' .. upto .. ' is not archived: ' .. archived .. ' of ' .. head .. ' are')
end
if upto <= trimmed then return trimmed end
if redis.call('XLEN', log) ~= head - trimmed then
  return redis.error_reply('BROKEN its stream was cut by hand')
end
local staying = tonumber(ARGV[2])
for i = 3, staying + 2 do
  if tonumber(ARGV[i]) > trimmed then
    local entry = redis.call('XRANGE', log, ARGV[i] .. '-0', ARGV[i] .. '-0')[1]
    redis.call('XADD', kept, entry[1], unpack(entry[2]))
  end
end

local function shorten(t)
  local stream = 'episode-' .. t
  local row = redis.call('HGET', index, stream)
  local events = row and tonumber(string.match(row, '^%d+')) or 0
  -- More than any of ours has: a script cannot ask for so many at once.
  if events == 0 or events > 1000 then return end
  local fields = {}
  for version = 1, events do fields[version] = stream .. '/' .. version end
  fields[#fields + 1] = 'projector/' .. string.format('%d', t + 1)
  local places = redis.call('HMGET', index, unpack(fields))
  local steps, last, outcome, scored = {}, 0, '.', nil
  for i, place in ipairs(places) do
    local at = tonumber(place or 'none')
    if not at or at > upto then return end
    steps[i], last = string.format('%d', at - last), at
    local entry = i < #places and redis.call('XRANGE', kept, at .. '-0', at .. '-0')[1]
    if entry and outcome == '.' then outcome, scored = outcome_of(entry), entry[1] end
  end
  local line = t .. ' ' .. row .. ' ' .. outcome .. ' ' .. table.concat(steps, ' ') .. '\n'
  redis.call('HSET', index, past_field(t), (redis.call('HGET', index, past_field(t)) or '') .. line)
  redis.call('HDEL', index, stream, unpack(fields))
  if scored then redis.call('XDEL', kept, scored) end
end

for i = staying + 3, #ARGV do shorten(ARGV[i]) end
redis.call('XTRIM', log, 'MINID', (upto + 1) .. '-0')
redis.call('HSET', index, '@trimmed', upto)
return upto
