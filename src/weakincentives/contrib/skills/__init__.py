"""Agent Skills as sections: imports folders with a `SKILL.md`, and exports prompts as skills."""

from .export import SkillExport, export_skills
from .front_matter import SkillError, SkillFinding, SkillWarning
from .reading import Skill, read_skill
from .skill_sections import SkillSection, skills

__all__ = [
    "Skill",
    "SkillError",
    "SkillExport",
    "SkillFinding",
    "SkillSection",
    "SkillWarning",
    "export_skills",
    "read_skill",
    "skills",
]
