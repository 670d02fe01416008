"""Tokens that are known by a public prefix: rules of gitleaks, by scripts/secret-rules.

Source: github.com/gitleaks/gitleaks, config/gitleaks.toml @b58d3f102cf3, MIT License, Copyright (c)
2019 Zachary Rice. 59 of its 222 rules: the others are for vendors that no training job logs
in to, guess by a variable's name, or match ordinary texts.

A rule set as data, because probes run inside images, where only Python's own modules are. Of the
packages on PyPI, detect-secrets has 25 such rules and none for Hugging Face; it guesses by entropy
and by names beyond that. Kaggle and W&B have no rule in either (confidential.py has them).
"""

# ruff: noqa: E501

from __future__ import annotations

# fmt: off
RULES: tuple[tuple[str, tuple[bytes, ...], float, bytes], ...] = (
    ("1password-secret-key", (b"a3-", ), 3.8, rb"\bA3-[A-Z0-9]{6}-(?:(?:[A-Z0-9]{11})|(?:[A-Z0-9]{6}-[A-Z0-9]{5}))-[A-Z0-9]{5}-[A-Z0-9]{5}-[A-Z0-9]{5}\b"),
    ("1password-service-account-token", (b"ops_", ), 4.0, rb"ops_eyJ[a-zA-Z0-9+/]{250,}={0,3}"),
    ("age-secret-key", (b"age-secret-key-1", ), 0.0, rb"AGE-SECRET-KEY-1[QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L]{58}"),
    ("alibaba-access-key-id", (b"ltai", ), 2.0, rb"\b(LTAI(?i:[a-z0-9]{20}))(?!\w)"),
    ("anthropic-admin-api-key", (b"sk-ant-admin01", ), 0.0, rb"\b(sk-ant-admin01-[a-zA-Z0-9_\-]{93}AA)(?!\w)"),
    ("anthropic-api-key", (b"sk-ant-api03", ), 0.0, rb"\b(sk-ant-api03-[a-zA-Z0-9_\-]{93}AA)(?!\w)"),
    ("artifactory-api-key", (b"akcp", ), 4.5, rb"\bAKCp[A-Za-z0-9]{69}\b"),
    ("artifactory-reference-token", (b"cmvmd", ), 4.5, rb"\bcmVmd[A-Za-z0-9]{59}\b"),
    ("aws-access-token", (b"a3t", b"akia", b"asia", b"abia", b"acca", ), 3.0, rb"\b((?:A3T[A-Z0-9]|AKIA|ASIA|ABIA|ACCA)[A-Z2-7]{16})\b"),
    ("aws-amazon-bedrock-api-key-long-lived", (b"absk", ), 3.0, rb"\b(ABSK[A-Za-z0-9+/]{109,269}={0,2})(?!\w)"),
    ("aws-amazon-bedrock-api-key-short-lived", (b"bedrock-api-key-", ), 3.0, rb"[b]edrock-api-key-YmVkcm9jay5hbWF6b25hd3MuY29t"),
    ("databricks-api-token", (b"dapi", ), 3.0, rb"\b(dapi[a-f0-9]{32}(?:-\d)?)(?!\w)"),
    ("digitalocean-access-token", (b"doo_v1_", ), 3.0, rb"\b(doo_v1_[a-f0-9]{64})(?!\w)"),
    ("digitalocean-pat", (b"dop_v1_", ), 3.0, rb"\b(dop_v1_[a-f0-9]{64})(?!\w)"),
    ("doppler-api-token", (b"dp.pt.", ), 2.0, rb"dp\.pt\.(?i:[a-z0-9]{43})"),
    ("flyio-access-token", (b"fo1_", b"fm1", b"fm2_", ), 4.0, rb"\b((?:fo1_[\w-]{43}|fm1[ar]_[a-zA-Z0-9+\/]{100,}={0,3}|fm2_[a-zA-Z0-9+\/]{100,}={0,3}))(?!\w)"),
    ("gcp-api-key", (b"aiza", ), 4.0, rb"\b(AIza[\w-]{35})(?!\w)"),
    ("github-app-token", (b"ghu_", b"ghs_", ), 3.0, rb"(?:ghu|ghs)_[0-9a-zA-Z]{36}"),
    ("github-fine-grained-pat", (b"github_pat_", ), 3.0, rb"github_pat_\w{82}"),
    ("github-oauth", (b"gho_", ), 3.0, rb"gho_[0-9a-zA-Z]{36}"),
    ("github-pat", (b"ghp_", ), 3.0, rb"ghp_[0-9a-zA-Z]{36}"),
    ("github-refresh-token", (b"ghr_", ), 3.0, rb"ghr_[0-9a-zA-Z]{36}"),
    ("gitlab-cicd-job-token", (b"glcbt-", ), 3.0, rb"glcbt-[0-9a-zA-Z]{1,5}_[0-9a-zA-Z_-]{20}"),
    ("gitlab-deploy-token", (b"gldt-", ), 3.0, rb"gldt-[0-9a-zA-Z_\-]{20}"),
    ("gitlab-feature-flag-client-token", (b"glffct-", ), 3.0, rb"glffct-[0-9a-zA-Z_\-]{20}"),
    ("gitlab-feed-token", (b"glft-", ), 3.0, rb"glft-[0-9a-zA-Z_\-]{20}"),
    ("gitlab-incoming-mail-token", (b"glimt-", ), 3.0, rb"glimt-[0-9a-zA-Z_\-]{25}"),
    ("gitlab-kubernetes-agent-token", (b"glagent-", ), 3.0, rb"glagent-[0-9a-zA-Z_\-]{50}"),
    ("gitlab-oauth-app-secret", (b"gloas-", ), 3.0, rb"gloas-[0-9a-zA-Z_\-]{64}"),
    ("gitlab-pat", (b"glpat-", ), 3.0, rb"glpat-[\w-]{20}"),
    ("gitlab-pat-routable", (b"glpat-", ), 4.0, rb"\bglpat-[0-9a-zA-Z_-]{27,300}\.[0-9a-z]{2}[0-9a-z]{7}\b"),
    ("gitlab-ptt", (b"glptt-", ), 3.0, rb"glptt-[0-9a-f]{40}"),
    ("gitlab-rrt", (b"gr1348941", ), 3.0, rb"GR1348941[\w-]{20}"),
    ("gitlab-runner-authentication-token", (b"glrt-", ), 3.0, rb"glrt-[0-9a-zA-Z_\-]{20}"),
    ("gitlab-runner-authentication-token-routable", (b"glrt-", ), 4.0, rb"\bglrt-t\d_[0-9a-zA-Z_\-]{27,300}\.[0-9a-z]{2}[0-9a-z]{7}\b"),
    ("gitlab-scim-token", (b"glsoat-", ), 3.0, rb"glsoat-[0-9a-zA-Z_\-]{20}"),
    ("heroku-api-key-v2", (b"hrku-aa", ), 4.0, rb"\b((HRKU-AA[0-9a-zA-Z_-]{58}))(?!\w)"),
    ("huggingface-access-token", (b"hf_", ), 2.0, rb"\b(hf_(?i:[a-z]{34}))(?!\w)"),
    ("huggingface-organization-api-token", (b"api_org_", ), 2.0, rb"\b(api_org_(?i:[a-z]{34}))(?!\w)"),
    ("linear-api-key", (b"lin_api_", ), 2.0, rb"lin_api_(?i:[a-z0-9]{40})"),
    ("notion-api-token", (b"ntn_", ), 4.0, rb"\b(ntn_[0-9]{11}[A-Za-z0-9]{32}[A-Za-z0-9]{3})(?!\w)"),
    ("openai-api-key", (b"t3blbkfj", ), 3.0, rb"\b(sk-(?:proj|svcacct|admin)-(?:[A-Za-z0-9_-]{74}|[A-Za-z0-9_-]{58})T3BlbkFJ(?:[A-Za-z0-9_-]{74}|[A-Za-z0-9_-]{58})\b|sk-[a-zA-Z0-9]{20}T3BlbkFJ[a-zA-Z0-9]{20})(?!\w)"),
    ("openshift-user-token", (b"sha256~", ), 3.5, rb"\b(sha256~[\w-]{43})(?:[^\w-]|\Z)"),
    ("perplexity-api-key", (b"pplx-", ), 4.0, rb"\b(pplx-[a-zA-Z0-9]{48})(?!\w)"),
    ("prefect-api-token", (b"pnu_", ), 2.0, rb"\b(pnu_[a-zA-Z0-9]{36})(?!\w)"),
    ("pulumi-api-token", (b"pul-", ), 2.0, rb"\b(pul-[a-f0-9]{40})(?!\w)"),
    ("pypi-upload-token", (b"pypi-ageichlwas5vcmc", ), 3.0, rb"pypi-AgEIcHlwaS5vcmc[\w-]{50,1000}"),
    ("rubygems-api-token", (b"rubygems_", ), 2.0, rb"\b(rubygems_[a-f0-9]{48})(?!\w)"),
    ("sendgrid-api-token", (b"sg.", ), 2.0, rb"\b(SG\.(?i:[a-z0-9=_\-\.]{66}))(?!\w)"),
    ("sentry-org-token", (b"sntrys_eyjpyxqio", ), 4.5, rb"\bsntrys_eyJpYXQiO[a-zA-Z0-9+/]{10,200}(?:LCJyZWdpb25fdXJs|InJlZ2lvbl91cmwi|cmVnaW9uX3VybCI6)[a-zA-Z0-9+/]{10,200}={0,2}_[a-zA-Z0-9+/]{43}(?:[^a-zA-Z0-9+/]|\Z)"),
    ("sentry-user-token", (b"sntryu_", ), 3.5, rb"\b(sntryu_[a-f0-9]{64})(?!\w)"),
    ("slack-bot-token", (b"xoxb", ), 3.0, rb"xoxb-[0-9]{10,13}-[0-9]{10,13}[a-zA-Z0-9-]*"),
    ("slack-legacy-bot-token", (b"xoxb", ), 2.0, rb"xoxb-[0-9]{8,14}-[a-zA-Z0-9]{18,26}"),
    ("slack-legacy-token", (b"xoxo", b"xoxs", ), 2.0, rb"xox[os]-\d+-\d+-\d+-[a-fA-F\d]+"),
    ("slack-legacy-workspace-token", (b"xoxa", b"xoxr", ), 2.0, rb"xox[ar]-(?:\d-)?[0-9a-zA-Z]{8,48}"),
    ("slack-user-token", (b"xoxp-", b"xoxe-", ), 2.0, rb"xox[pe](?:-[0-9]{10,13}){3}-[a-zA-Z0-9-]{28,34}"),
    ("slack-webhook-url", (b"hooks.slack.com", ), 0.0, rb"(?:https?://)?hooks.slack.com/(?:services|workflows|triggers)/[A-Za-z0-9+/]{43,56}"),
    ("stripe-access-token", (b"sk_test", b"sk_live", b"sk_prod", b"rk_test", b"rk_live", b"rk_prod", ), 2.0, rb"\b((?:sk|rk)_(?:test|live|prod)_[a-zA-Z0-9]{10,99})(?!\w)"),
    ("vault-batch-token", (b"hvb.", ), 4.0, rb"\b(hvb\.[\w-]{138,300})(?!\w)"),
)
"""Each rule: its id, words of which one stands in each match (in small letters), the least entropy
of a token in bits a character, and the pattern, whose first group is the token."""
