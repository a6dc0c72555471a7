-- job_submit.lua: the site's own rules, then AIStation's; lies beside slurm.conf, with aistation.lua.
--
-- The site's own goes first, since it may choose the partition that AIStation looks up. What it refuses stays refused, with its
-- own words and code; an error in it is Slurm's to handle, as without AIStation. AIStation itself never refuses a job.
-- slurmctld looks at the time of this file alone: `touch` it after a change of the site's own file.
local site_file = "/etc/slurm/job_submit.site.lua"

local folder = string.match(debug.getinfo(1, "S").source, "^@(.*/)") or "/etc/slurm/"
dofile(site_file)
local site_submit, site_modify = slurm_job_submit, slurm_job_modify

local loaded, aistation = pcall(dofile, folder .. "aistation.lua")
if loaded and type(aistation) ~= "table" then loaded, aistation = false, "it returns no module" end

function slurm_job_submit(job_desc, part_list, submit_uid)
  local code = site_submit(job_desc, part_list, submit_uid)
  if type(code) == "number" and code ~= slurm.SUCCESS then return code end
  local worked, why = loaded, aistation
  if loaded then worked, why = pcall(aistation.job_submit, job_desc, part_list, submit_uid) end
  if not worked then
    slurm.log_info("%s", "aistation: job passed unchanged: aistation.lua is not usable: " .. tostring(why))
  end
  return code
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
  if site_modify == nil then return slurm.SUCCESS end
  return site_modify(job_desc, job_rec, part_list, modify_uid)
end

return slurm.SUCCESS
