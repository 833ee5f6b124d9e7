-- What the index of a run still says of an episode that lies in its archive whole, and its fold too: a line in the field
-- '@past/<t / 64>', whose other lines are those of its neighbours:
--
--   '<t> <events> <last kind> <outcome> <position of the first event> <distance to the second> ... <to the fold>\n'
--
-- This is the beginning of each script that reads an index. `outcome`: see `outcome_of`.
local function past_field(t)
  return string.format('@past/%d', math.floor(t / 64))
end

-- The line of episode `t` without its number, or nil.
local function past_line(index, t)
  local group = redis.call('HGET', index, past_field(t))
  return group and string.match('\n' .. group, '\n' .. t .. ' ([^\n]+)\n') or nil
end

-- The row of a stream, '<events> <last kind>', or nil.
local function past_row(index, stream)
  local t = string.match(stream, '^episode%-(%d+)$')
  local line = t and past_line(index, t)
  return line and string.match(line, '^%d+ %S+') or nil
end

-- Where '<stream>/<version>' stands, or nil.
local function past_place(index, field)
  local t, version = string.match(field, '^episode%-(%d+)/(%d+)$')
  local folded = string.match(field, '^projector/(%d+)$')
  if folded then t = string.format('%d', folded - 1) end
  local line = t and past_line(index, t)
  if not line then return nil end
  local events = tonumber(string.match(line, '^%d+'))
  version = folded and events + 1 or tonumber(version)
  if version < 1 or (version > events and not folded) then return nil end
  local at = 0
  for step in string.gmatch(string.match(line, '^%d+ %S+ %S (.*)$'), '%d+') do
    at, version = at + step, version - 1
    if version == 0 then return string.format('%d', at) end
  end
end

local function field_of(entry, name)
  if entry then
    for i = 1, #entry[2], 2 do
      if entry[2][i] == name then return entry[2][i + 1] end
    end
  end
  return ''
end

-- What a `scored` says: '+' success, '-' failure, '?' the environment failed, '.' of everything else.
local function outcome_of(entry)
  if field_of(entry, 'kind') ~= 'scored' then return '.' end
  local readable, said = pcall(cjson.decode, field_of(entry, 'data'))
  if not readable or type(said) ~= 'table' then return '.' end
  local breakdown = said['breakdown']
  if type(breakdown) == 'table' and breakdown['valid'] == false then return '?' end
  return said['success'] == true and '+' or '-'
end
