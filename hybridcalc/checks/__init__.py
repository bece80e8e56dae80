"""Do deployment files hold up? Rules run on every deployment that is found, and what to do with what they find.

judge.py runs the rules of one deployment, run.py those of many files; settings.py holds what a project configures;
suppress.py and baseline.py say which findings are known, fix.py rewrites values. rules.py lists every rule.
"""
