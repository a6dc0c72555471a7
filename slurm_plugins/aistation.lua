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
-- one line. slurmctld holds its locks meanwhile: no process is started, and no file is read but the small table, which has
-- to be a plain file in a folder that only root or SlurmUser can write (plain Lua cannot see an owner, and a FIFO would
-- block). slurmctld looks at job_submit.lua alone: `touch` that file after a change of this one.
--
-- Written for Lua 5.1, which Slurm loads in Debian's builds; also runs on 5.3 and 5.4.

local aistation = { decisions_path = "/var/lib/aistation/decisions" }

local TABLE_BYTES_MAX = 1024 * 1024
local CLOCK_SKEW_S = 300

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

-- ---- the decision table: `aistation-decisions 1 <unix time> <ttl s>`, then `<partition> <nodes> <switches> <wait s>` ----

-- Text of a table -> { time =, ttl =, rows = { ["gpu 16"] = { switches =, wait_s = } } }, or nil and why it is not one.
function aistation.parse_decisions(text)
  if string.sub(text, -1) ~= "\n" then return nil, "its last line is cut short" end
  local result
  local number = 0
  for line in string.gmatch(text, "([^\n]*)\n") do
    number = number + 1
    if number == 1 then
      local time, ttl = string.match(line, "^aistation%-decisions 1 (%d+) (%d+)$")
      if time == nil or #time > 12 or #ttl > 9 then
        return nil, "its first line is not `aistation-decisions 1 <unix time> <ttl s>`"
      end
      result = { time = tonumber(time), ttl = tonumber(ttl), rows = {} }
    else
      local partition, nodes, switches, wait = string.match(line, "^([%w_%.%-]+) (%d+) (%d+) (%d+)$")
      nodes, switches, wait = whole(nodes, 1, 999999), whole(switches, 1, 999999), whole(wait, 0, 604800)
      if not (nodes and switches and wait) then
        return nil, string.format("line %d is not `<partition> <nodes> <switches> <wait s>`", number)
      end
      local key = string.format("%s %d", partition, nodes)
      if result.rows[key] then return nil, string.format("line %d is there twice (%s)", number, key) end
      result.rows[key] = { switches = switches, wait_s = wait }
    end
  end
  return result
end

local last = {} -- of the table: its path, size and first line, and what came of it
local said -- the last complaint, so that a table which stays missing costs one line and not one a job

local function read_decisions(path)
  local file = io.open(path, "r")
  if file == nil then return nil, "there is none" end
  local size = file:seek("end") or -1
  file:seek("set", 0)
  if size < 0 or size > TABLE_BYTES_MAX then
    file:close()
    return nil, "it is not a file of at most 1 MiB"
  end
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

-- Rows of the table that is in force at `now`, or nil; says why there are none when that changes.
local function decisions(now)
  local path = aistation.decisions_path
  if path == nil or path == "" then return nil end
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
  return found and found.rows
end

local function partition_of(job, part_list)
  if job.partition ~= nil and job.partition ~= "" then return job.partition end
  for name, partition in pairs(part_list or {}) do
    if partition.flag_default == 1 then return partition.name or name end
  end
  return ""
end

-- Leaf switches that the job may span, and seconds that it waits for so few: (switches, wait_s), or nil to leave it alone.
local function limit_for(job, part_list, request)
  if request and (request.kind ~= "pack" or request.max) then
    return request.max, request.wait_min and request.wait_min * 60
  end
  local nodes = job.min_nodes
  if unset(nodes) or not (unset(job.max_nodes) or job.max_nodes == nodes) then return nil end
  local rows = decisions(os.time())
  local row = rows and rows[string.format("%s %d", partition_of(job, part_list), nodes)]
  if not row then return nil end
  return row.switches, request and request.wait_min and request.wait_min * 60 or row.wait_s
end

local function place(job, part_list, wanted)
  if not (unset(job.req_switch) or job.req_switch == 0) then return end -- the user's own --switches stands
  local request = wanted.SWITCH and switch_request(wanted.SWITCH)
  if wanted.SWITCH and not request then
    tell("--ais-switch: expected pack, spread or any, then ,max=N and ,wait=MIN where wanted; nothing is changed")
    return
  end
  local switches, wait_s = limit_for(job, part_list, request)
  if switches == nil then return end
  job.req_switch = switches
  if wait_s then job.wait4switch = wait_s end
  local patience = wait_s and string.format(" for up to %d s", wait_s) or ""
  tell(string.format("waits%s for nodes below at most %d leaf switch%s", patience, switches, switches == 1 and "" or "es"))
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
  attempt("without a switch limit", place, job, part_list, wanted)
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
