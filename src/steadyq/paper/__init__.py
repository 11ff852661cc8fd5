"""The paper: what it is called, its tables, checked and recomputed."""

TITLE = "Understanding and Stabilizing Deep Q-Learning via Controlled Bootstrapping and Regulated Value Dynamics"
AUTHORS = ("Bozhou Chen", "Yongyi Wang", "Hanyu Liu", "Xionghui Yang", "Wenxin Li")
PLACE = "School of Computer Science, Peking University"

CITATION = f"{', '.join(AUTHORS[:-1])} and {AUTHORS[-1]}: {TITLE}. {PLACE}, preprint."

BIBTEX = f"""@misc{{chen-stabilizing-deep-q-learning,
  title  = {{{TITLE}}},
  author = {{{" and ".join(AUTHORS)}}},
  note   = {{Preprint, {PLACE}}},
}}"""
