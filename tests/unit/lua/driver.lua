-- Stands in for slurmctld: loads job_submit.lua and hands it jobs, with a `slurm` table and job fields as strict as the real
-- ones (of Slurm 22.05). Standard input is Lua text: `return { script = PATH, jobs = { { FIELD = VALUE, ... }, ... },
-- parts = {...}, now = EPOCH, before = function(n) ... end }`. Prints, each on a line of its own:
--     log TEXT    user TEXT    set FIELD=VALUE    return VALUE    fault TEXT (slurmctld's own complaint: the hook raised)

slurm = {
  SUCCESS = 0, ERROR = -1, FAILURE = -1, SPREAD_JOB = 131072,
  NO_VAL = 4294967294, NO_VAL16 = 65534, NO_VAL8 = 254, INFINITE = 4294967295,
}

-- slurm.log_*() and log_user() format: a bare % in the first argument raises, as it does in slurmctld
local function say(kind)
  return function(format, ...) print(kind .. " " .. string.format(format, ...)) end
end
slurm.log_info, slurm.log_error, slurm.log_debug = say("log"), say("log"), say("log")
slurm.log_user = say("user")
slurm.user_msg = function(text) print("user " .. text) end

local READ_ONLY = { spank_job_env = true, spank_job_env_size = true, user_id = true, network = true, argv = true }
local WRITABLE = {
  admin_comment = "string", exc_nodes = "string", req_switch = "number", wait4switch = "number", requeue = "number",
}

local function job_desc(fields)
  return setmetatable({}, {
    __index = function(_, name)
      if name == fields.raises_on then error("reading " .. name .. " 100% broken") end
      return fields[name]
    end,
    __newindex = function(_, name, value)
      if name == fields.refuses then error("writing " .. name .. " 100% broken") end
      -- luaL_checkstring and luaL_checknumber raise for nil and other types
      if READ_ONLY[name] or WRITABLE[name] == nil then error("job_desc." .. name .. " is not writable here") end
      if type(value) ~= WRITABLE[name] then error(name .. ": " .. WRITABLE[name] .. " expected, got " .. type(value)) end
      if type(value) == "number" then value = string.format("%d", value) end
      print("set " .. name .. "=" .. value)
      fields[name] = value
    end,
  })
end

local case = assert((loadstring or load)(io.read("*a")))()
if case.now then os.time = function() return case.now end end
local forbidden = function() error("no process may be started inside slurmctld") end
os.execute, io.popen = forbidden, forbidden

assert(loadfile(case.script))()
for number, fields in ipairs(case.jobs) do
  if case.before then case.before(number) end
  local worked, result = pcall(slurm_job_submit, job_desc(fields), case.parts or {}, 20001)
  print(worked and ("return " .. tostring(result)) or ("fault " .. tostring(result)))
end
if case.modify then print("modify " .. tostring(slurm_job_modify(job_desc(case.modify), {}, {}, 0))) end
