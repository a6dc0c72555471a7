-- aistation.lua: what AIStation does when a job is submitted, as a module for a site's own job_submit.lua:
--
--     local loaded, aistation = pcall(dofile, "/etc/slurm/aistation.lua")
--     function slurm_job_submit(job_desc, part_list, submit_uid)
--        if loaded then aistation.job_submit(job_desc, part_list, submit_uid) end     -- always slurm.SUCCESS
--        ... the site's own rules ...
--     end
--
-- A site without a file of its own takes job_submit.lua beside this one. Settings, set after loading:
--     aistation.decisions_path = "/var/lib/aistation/decisions"     the placement decision table; "" for none
--
-- It looks up, it does not think, and it never refuses a job: whatever goes wrong, the job passes and slurmctld's log gets
-- one line. slurmctld holds its locks meanwhile: no process is started, and no file is read but the small table. Plain Lua
-- cannot see an owner: the table is opened for update, which SlurmUser may do with its own files (and nothing is written).
-- slurmctld looks at job_submit.lua alone: `touch` that file after a change of this one.
--
-- Written for Lua 5.1, which Slurm loads in Debian's builds; also runs on 5.3 and 5.4.

local aistation = { decisions_path = "/var/lib/aistation/decisions" }

local TABLE_BYTES_MAX, TABLE_ROWS_MAX = 24 * 1024, 600 -- what is read within slurmctld's locks in less than 5 ms
local CLOCK_SKEW_S = 300
local NAMES_SHOWN = 120 -- bytes of a list of nodes in what a user is told

-- ---- what a user may ask for: the same words and bounds as in spank_aistation.c -----------------------------------------

local RESUME = { "auto", "megatron", "deepspeed", "hf", "lightning", "dcp", "nemo", "none" }
local SWITCH = { "pack", "spread", "any" }

local function is_one_of(word, words)
  for _, known in ipairs(words) do
    if word == known then return true end
  end
  return false
end

-- "12" -> 12 within [low, high]; nil where it is not.
local function whole(text, low, high)
  if text == nil or #text > 6 or not string.match(text, "^%d+$") then return nil end
  local number = tonumber(text)
  if number < low or number > high then return nil end
  return number
end

-- "pack,max=2,wait=10" -> { kind = "pack", max = 2, wait_min = 10 }; nil where it is not of that form.
local function switch_request(text)
  local request
  for part in string.gmatch(text .. ",", "([^,]*),") do
    local key, value = string.match(part, "^(%l+)=(%d+)$")
    if request == nil then
      if not is_one_of(part, SWITCH) then return nil end
      request = { kind = part }
    elseif key == "max" then
      request.max = whole(value, 1, 10000)
      if request.max == nil then return nil end
    elseif key == "wait" then
      request.wait_min = whole(value, 0, 10080)
      if request.wait_min == nil then return nil end
    else
      return nil
    end
  end
  return request
end

-- The job's AISTATION_* variables by their last part: { RESUME = "auto", ... }. job_desc.spank_job_env counts from 0.
local function variables(job)
  local found = {}
  local env = job.spank_job_env
  local at = 0
  while env ~= nil and at < 4096 and env[at] ~= nil do
    local name, value = string.match(env[at], "^AISTATION_([A-Z_]+)=(.*)$")
    if name then found[name] = value end
    at = at + 1
  end
  return found
end

-- ---- talking: a bare % in a user's text would raise in slurm.log_*, so it never is the format -----------------------------

local function log(text) slurm.log_info("%s", "aistation: " .. text) end
local function tell(text) slurm.log_user("%s", "aistation: " .. text) end

local function unset(value)
  return value == nil or value == slurm.NO_VAL or value == slurm.NO_VAL16 or value == slurm.INFINITE
end

-- ---- opting in --------------------------------------------------------------------------------------------------------

-- "nodes=2-4" of a job that asked for a range, which no output of Slurm tells once it has started; else nil. A field that
-- cannot be read costs the range alone; the placement, which reads it too, says so in the log.
local function range_of(job)
  local read, fewest, most = pcall(function() return job.min_nodes, job.max_nodes end)
  if not read or unset(fewest) or unset(most) or fewest < 1 or fewest >= most or most >= 1000000 then return nil end
  return string.format("nodes=%d-%d", fewest, most)
end

-- The segment of AdminComment (which users cannot write) by which the watchdog and the agents know a managed job.
local function tag_of(wanted, job)
  local words = { "ais", "resume=" .. wanted.RESUME }
  local max = whole(wanted.MAX_RESTARTS, 0, 1000)
  if max then words[#words + 1] = string.format("max=%d", max) end
  local hang = whole(wanted.HANG_TIMEOUT, 1, 10080)
  if hang then words[#words + 1] = string.format("hang=%d", hang) end
  words[#words + 1] = range_of(job)
  return "[" .. table.concat(words, " ") .. "]"
end

local function opt_in(job, wanted)
  if wanted.RESUME == nil or wanted.RESUME == "none" then return end
  if not is_one_of(wanted.RESUME, RESUME) then
    tell("--ais-resume: expected one of " .. table.concat(RESUME, ", ") .. "; this job is not restarted after a fault")
    log("AISTATION_RESUME has an unknown value: the job passes and is not managed")
  elseif job.script == nil or job.script == "" then
    tell("--ais-resume: only batch jobs (sbatch) can be restarted; this one is not")
  elseif job.requeue == 0 then
    tell("--ais-resume: --no-requeue stands, this job is not restarted after a fault")
  else
    local theirs = string.gsub(job.admin_comment or "", "%s*%[ais [^%]]*%]", "")
    local tag = tag_of(wanted, job)
    job.admin_comment = theirs == "" and tag or (theirs .. " " .. tag)
    if unset(job.requeue) then job.requeue = 1 end -- whatever the site's JobRequeue is: this job asks for it
    tell("this job is restarted after a hardware fault " .. tag)
  end
end

-- ---- the decision table: what `aistation placement publish` writes (aistation_slurm/placement/table.py) -------------------
--
--     aistation-decisions 2 <unix time> <ttl s> <adler32 of all that follows>
--     list <number> <nodes>
--     partition <name> <nodes> <clean> <gpus a node> <list>
--     <first>-<last> <per> <plus> <wait s> <list>
--     ...
--
-- A job of first..last nodes may span ceil(nodes / per) + plus leaf switches and waits so long for so few. A partition's list:
-- the nodes that jobs of several nodes keep off; a row's: those that its sizes keep off for now; 0 is none. clean: the most
-- nodes for which there surely are enough others.

local function adler32(text, from)
  local byte, low, high = string.byte, 1, 0
  local last = #text
  local at = from
  while at + 7 <= last do
    local a, b, c, d, e, f, g, h = byte(text, at, at + 7)
    high = high + 8 * low + 8 * a + 7 * b + 6 * c + 5 * d + 4 * e + 3 * f + 2 * g + h
    low = low + a + b + c + d + e + f + g + h
    if high > 4e12 then low, high = low % 65521, high % 65521 end
    at = at + 8
  end
  while at <= last do
    low = low + byte(text, at)
    high = high + low
    at = at + 1
  end
  return (high % 65521) * 65536 + low % 65521
end

local EMPTY = {}

-- Each *_line: its content, or nil where it is none of its kind (or names a list that is not before it).
local function list_line(line)
  local number, nodes = string.match(line, "^list (%d+) ([%w_%.,%[%]-]+)$")
  number = whole(number, 1, 9999)
  if not number then return nil end
  local noted = string.gsub(nodes, "[%[%]]", { ["["] = "{", ["]"] = "}" }) -- here, since it takes 60 us for 2 kB
  return number, { nodes = nodes, noted = noted }
end

local function partition_line(line, lists)
  local name, nodes, clean, gpus, list = string.match(line, "^partition (%S+) (%d+) (%d+) (%d+) (%d+)$")
  nodes, clean, gpus = whole(nodes, 0, 999999), whole(clean, 0, 999999), whole(gpus, 0, 9999)
  local avoid = lists[tonumber(list)]
  if not (nodes and clean and gpus and avoid) then return nil end
  return name, { nodes = nodes, clean = clean, gpus = gpus, avoid = avoid, rows = {} }
end

local function row_line(line, lists)
  local first, final, per, plus, wait, list = string.match(line, "^(%d+)%-(%d+) (%d+) (%d+) (%d+) (%d+)$")
  if not first or #first > 6 or #final > 6 or #per > 6 or #plus > 6 or #wait > 6 then return nil end
  first, final, per, plus, wait = tonumber(first), tonumber(final), tonumber(per), tonumber(plus), tonumber(wait)
  local excluded = lists[tonumber(list)]
  if first < 1 or final < first or per < 1 or wait > 604800 or not excluded then return nil end
  return { first = first, last = final, per = per, plus = plus, wait_s = wait, excluded = excluded }
end

-- Text of a table -> { time =, ttl =, partitions = { gpu = {...} } }, or nil and why it is not one.
function aistation.parse_decisions(text)
  local header = string.match(text, "^[^\n]*\n")
  local time, ttl, sum = string.match(header or "", "^aistation%-decisions 2 (%d+) (%d+) (%d+)\n$")
  if time == nil or #time > 12 or #ttl > 9 or #sum > 10 then
    return nil, "its first line is not `aistation-decisions 2 <unix time> <ttl s> <adler32>`"
  end
  if adler32(text, #header + 1) ~= tonumber(sum) then return nil, "its sum does not match: it is cut short or was changed" end
  local result = { time = tonumber(time), ttl = tonumber(ttl), partitions = {} }
  local lists, number, rows, free_from, left = { [0] = EMPTY }, 1, nil, 1, TABLE_ROWS_MAX
  for line in string.gmatch(string.sub(text, #header + 1), "([^\n]*)\n") do
    number = number + 1
    local row = rows and row_line(line, lists)
    if row then
      if row.first < free_from then return nil, string.format("line %d overlaps the one before", number) end
      left = left - 1
      if left < 0 then return nil, string.format("it has more than %d rows", TABLE_ROWS_MAX) end
      rows[#rows + 1] = row
      free_from = row.last + 1
    else
      local name, partition = partition_line(line, lists)
      local list, nodes = list_line(line)
      if list then
        lists[list] = nodes
      elseif name == nil then
        return nil, string.format("line %d is neither a list nor a partition nor a row", number)
      elseif result.partitions[name] then
        return nil, string.format("line %d: partition %s is there twice", number, name)
      else
        result.partitions[name] = partition
        rows, free_from = partition.rows, 1
      end
    end
  end
  return result
end

local last = {} -- of the table: its path, size and first line, and what came of it
local said -- the last complaint, so that a table which stays missing costs one line and not one a job

local function read_decisions(path)
  local file = io.open(path, "r+")
  if file == nil then return nil, "there is none that SlurmUser owns" end
  local size = file:seek("end") or -1
  if size < 0 or size > TABLE_BYTES_MAX then
    file:close()
    return nil, "it is not a file of at most 24 KiB"
  end
  file:seek("set", 0)
  local first = file:read("*l")
  if last.path ~= path or last.size ~= size or last.first ~= first or first == nil then
    file:seek("set", 0)
    local text = file:read(TABLE_BYTES_MAX)
    last = { path = path, size = size, first = first }
    if text == nil then
      last.why = "it is empty or cannot be read"
    else
      last.decisions, last.why = aistation.parse_decisions(text)
    end
  end
  file:close()
  return last.decisions, last.why
end

local looked = {} -- the last look at the file: when and where, and what came of it

-- Partitions of the table that is in force at `now`, or nil; says why there are none when that changes. In a storm of
-- submissions the file is looked at once a second.
local function decisions(now)
  local path = aistation.decisions_path
  if path == nil or path == "" then return nil end
  if looked.at == now and looked.path == path then return looked.partitions end
  local found, why = read_decisions(path)
  if found and now > found.time + found.ttl then
    found, why = nil, string.format("it is stale (of %d, for %d s)", found.time, found.ttl)
  elseif found and found.time > now + CLOCK_SKEW_S then
    found, why = nil, "it is of a later time than now"
  end
  if why ~= said then
    said = why
    if why then log("the decision table " .. path .. " is not used: " .. why .. "; jobs pass unchanged") end
  end
  looked = { at = now, path = path, partitions = found and found.partitions }
  return looked.partitions
end

-- ---- what the job is ----------------------------------------------------------------------------------------------------

local function given(text) return text ~= nil and text ~= "" end
local function number_of(value) return not unset(value) and value > 0 and value or nil end

-- "gres:gpu:a100:16" (22.05) or "gres/gpu:16" (since 23.11) -> 16; nil where there are no GPUs in it.
local function gpus_in(tres)
  local found
  for part in string.gmatch(tres or "", "[^,]+") do
    local rest = string.match(part, "^gres[:/]gpu(.*)$") or string.match(part, "^gpu(.*)$")
    local count = rest and (string.match(rest, "^[:=](%d+)$") or string.match(rest, "^[:/][^:=]+[:=](%d+)$"))
    if rest and not count then return nil end -- "gpu:4K", "gpu:a100": not read
    if count then found = (found or 0) + tonumber(count) end
  end
  return found
end

local function cpus_a_node(part_list, name)
  local partition = part_list and part_list[name]
  local cpus, nodes = partition and partition.total_cpus, partition and partition.total_nodes
  if not cpus or not nodes or nodes < 1 or cpus % nodes ~= 0 then return nil end
  return cpus / nodes
end

local function at_least(nodes, amount, a_node)
  if not amount or not a_node or a_node < 1 then return nodes end
  return math.max(nodes or 1, math.ceil(amount / a_node))
end

-- The fewest and the most nodes of the job in this partition: as asked, or what its GPUs, tasks and CPUs surely need.
local function size_of(job, part_list, name, partition)
  local fewest, most = number_of(job.min_nodes), number_of(job.max_nodes)
  if fewest then return fewest, most and math.max(most, fewest) or fewest end
  local tasks, gpus_a_node = number_of(job.num_tasks), gpus_in(job.tres_per_node)
  if partition.gpus > 0 then gpus_a_node = math.min(gpus_a_node or partition.gpus, partition.gpus) end
  local gpus_a_task = gpus_in(job.tres_per_task)
  fewest = at_least(nil, gpus_in(job.tres_per_job), gpus_a_node)
  if tasks then
    fewest = at_least(fewest, gpus_a_task and gpus_a_task * tasks, gpus_a_node)
    fewest = at_least(fewest, tasks, number_of(job.ntasks_per_node))
    fewest = at_least(fewest, tasks * (number_of(job.cpus_per_task) or 1), cpus_a_node(part_list, name))
  end
  return fewest, fewest
end

local function partitions_of(job, part_list)
  local names = {}
  for name in string.gmatch(job.partition or "", "[^,]+") do names[#names + 1] = name end
  if names[1] then return names end
  for name, partition in pairs(part_list or {}) do
    if partition.flag_default == 1 then return { partition.name or name } end
  end
  return names
end

local function row_of(rows, nodes)
  local low, high = 1, #rows
  while low <= high do
    local middle = math.floor((low + high) / 2)
    local row = rows[middle]
    if nodes < row.first then
      high = middle - 1
    elseif nodes > row.last then
      low = middle + 1
    else
      return row
    end
  end
  return nil
end

local function keep_off(found, list)
  if not list.nodes or found.avoid == list.nodes then return end
  found.avoid = found.avoid and (found.avoid .. "," .. list.nodes) or list.nodes
  found.noted = found.noted and (found.noted .. "," .. list.noted) or list.noted
end

-- What the table has for the job, over all partitions that it may start in: the loosest limit, the shortest wait, all nodes to
-- keep off. { nodes =, switches =, wait_s =, avoid = hostlist, noted = the same for the note, kept = true where some are kept for
-- larger jobs, short = true where some partition has too few other nodes }, or nil.
local function looked_up(job, part_list)
  local names = partitions_of(job, part_list)
  local partitions = names[1] and decisions(os.time())
  if not partitions then return nil end
  local found, limited = { nodes = 0 }, true
  for _, name in ipairs(names) do
    local partition = partitions[name]
    if not partition then return nil end
    local fewest, most = size_of(job, part_list, name, partition)
    if not fewest then return nil end
    local row = row_of(partition.rows, most)
    if most < 2 and not row then return nil end
    if row and most > 1 then
      found.switches = math.max(found.switches or 0, math.ceil(most / row.per) + row.plus)
      found.wait_s = math.min(found.wait_s or row.wait_s, row.wait_s)
    else
      limited = false
    end
    found.nodes = math.max(found.nodes, most)
    found.short = found.short or fewest > partition.clean
    if most > 1 then keep_off(found, partition.avoid) end
    if row and row.excluded.nodes then
      keep_off(found, row.excluded)
      found.kept = true
    end
  end
  if not limited then found.switches, found.wait_s = nil, nil end
  return found
end

-- ---- placing --------------------------------------------------------------------------------------------------------------

-- Leaf switches that the job may span, seconds that it waits for so few, and true where the user said so; nil: left alone.
-- --switches, --nodelist, --constraint, --contiguous and --spread-job are the user's own placement; the parts of a
-- heterogeneous job start together, so that none of them may wait for itself.
local function limit_for(job, found, request)
  if not (unset(job.req_switch) or job.req_switch == 0) then return nil end
  if request and (request.kind ~= "pack" or request.max) then
    return request.max, request.wait_min and request.wait_min * 60, true
  end
  if not found or given(job.req_nodes) or given(job.features) or job.contiguous == 1 then return nil end
  if not unset(job.het_job_offset) then return nil end
  local spread = slurm.SPREAD_JOB
  if spread and not unset(job.bitflags) and math.floor(job.bitflags / spread) % 2 == 1 then return nil end
  return found.switches, request and request.wait_min and request.wait_min * 60 or found.wait_s
end

-- How the nodes to avoid concern the job: "ours" (they are excluded), "user" (the user's own --exclude stands), or nil.
-- A job that could not start without them, or whose nodes the user chose, may use them.
local function exclusion_for(job, found)
  if not found or given(job.req_nodes) or given(job.features) then return nil end
  if given(job.exc_nodes) then return "user" end
  return not found.short and "ours" or nil
end

-- The segment of AdminComment by which `aistation placement explain`, and the correction of pending jobs, know what was done.
local function note_of(found, switches, wait_s, kind)
  local size = found and string.format(" n=%d", found.nodes) or ""
  local limit = switches and string.format(" s=%d", switches) or ""
  local wait = wait_s and string.format(" w=%d", wait_s) or ""
  local off = kind == "user" and "user" or kind == "ours" and (found.noted or "-")
  return "[ais-place" .. size .. limit .. wait .. (off and " x=" or "") .. (off or "") .. "]"
end

local function seconds(wait_s)
  if not wait_s then return "" end
  return wait_s % 60 == 0 and string.format(" for up to %d min", wait_s / 60) or string.format(" for up to %d s", wait_s)
end

local function place(job, part_list, wanted)
  local request = wanted.SWITCH and switch_request(wanted.SWITCH)
  if wanted.SWITCH and not request then
    tell("--ais-switch: expected pack, spread or any, then ,max=N and ,wait=MIN where wanted; nothing is changed")
    return
  end
  local found
  if not given(job.reservation) then found = looked_up(job, part_list) end -- its nodes are not those of the partition
  local switches, wait_s, asked = limit_for(job, found, request)
  local kind = exclusion_for(job, found)
  local avoid = kind == "ours" and found.avoid or nil
  if switches then
    job.req_switch = switches
    if wait_s then job.wait4switch = wait_s end
    local many = switches == 1 and "" or "es"
    tell(string.format("waits%s for nodes below at most %d leaf switch%s", seconds(wait_s), switches, many))
  end
  if avoid then
    job.exc_nodes = avoid
    local which = #avoid <= NAMES_SHOWN and avoid or string.sub(avoid, 1, NAMES_SHOWN) .. "... (all in ExcNodeList)"
    local why = found.kept and "degraded fabric, or kept for larger jobs that wait" or "degraded fabric, jobs of one node only"
    tell("keeps off " .. which .. ": " .. why)
  end
  if kind or (switches and not asked) then
    local theirs = string.gsub(job.admin_comment or "", "%s*%[ais%-place [^%]]*%]", "")
    local note = note_of(found, not asked and switches, not asked and wait_s, kind)
    job.admin_comment = theirs == "" and note or (theirs .. " " .. note)
  end
end

-- ---- Slurm's two hooks ------------------------------------------------------------------------------------------------

-- A fault in one step costs neither the job nor the other step.
local function attempt(lost, step, ...)
  local worked, why = pcall(step, ...)
  if not worked then pcall(log, "job passed " .. lost .. ": " .. tostring(why)) end
end

local function submit(job, part_list)
  local wanted = variables(job)
  attempt("and is not managed", opt_in, job, wanted)
  attempt("without placement", place, job, part_list, wanted)
end

-- Always slurm.SUCCESS.
function aistation.job_submit(job_desc, part_list, submit_uid)
  attempt("unchanged", submit, job_desc, part_list)
  return slurm.SUCCESS
end

-- Changes nothing; it also runs for the watchdog's own updates.
function aistation.job_modify(job_desc, job_rec, part_list, modify_uid)
  return slurm.SUCCESS
end

return aistation
