"""Each claim of docs/guides/migrating.md has a test, named here by the claim's first words.

A claim that is new on the page, or a test that is renamed, fails here until the two are put together again.
`test_x::y` is `test_y` of the file test_x.py. The table of defaults has a test of its own
(test_default_table.py), and the page's programs run (test_code_blocks.py).
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]
PAGE = (TESTS.parent / "docs" / "guides" / "migrating.md").read_text(encoding="utf-8")
TABLES = ("Import paths", "Not built yet")
CLAIMS = {
    "`import art` loads nothing but": """
        test_import::importing_art_loads_nothing_prints_nothing_and_changes_no_environment
        test_public_names::importing_is_silent
    """,
    "`art.LocalBackend` exists (it": """
        test_import::every_public_name_is_loaded_on_first_use_and_stays_light
    """,
    "The root is `.art` in the current": """
        test_small_functions::folders
    """,
    "`get_step_from_dir` and `get_model_step`": """
        test_small_functions::the_newest_step_on_disk
    """,
    "`get_model_dir(model)` without": """
        test_small_functions::folders
    """,
    "`iterate_dataset` gives the": """
        test_dataset_batches::the_order_is_that_of_a_generator_seeded_with_the_epoch
        test_dataset_batches::the_shared_generator_is_left_alone
    """,
    "`log_http_errors` raises `art.errors.ServerError`": """
        test_small_functions::http_errors_tell_what_the_server_said
    """,
    "`limit_concurrency` works over": """
        test_small_functions::a_limit_outlives_its_event_loop
        test_small_functions::a_limit_for_each_key
    """,
    "`strip_logprobs` leaves alone": """
        test_small_functions::what_copies_share_is_left_alone
    """,
    "`benchmark_rollout` writes to": """
        test_small_functions::the_mean_reward_of_rollouts
    """,
    "`record_provenance` writes into": """
        test_provenance::an_offline_run_keeps_it_in_its_config
        test_provenance::an_artifact_out_of_reach_is_told_and_stops_nothing
    """,
    "`consume_chat_completion_stream`": """
        test_stream_consumers::text_logprobs_usage_and_fields_of_the_server
        test_stream_consumers::on_chunk_sees_each_chunk_and_may_stop
        test_stream_consumers::a_stream_without_chunks_is_an_error
        test_stream_trains::what_was_streamed_is_trained
    """,
    "`get_guided_completion_params`": """
        test_guided_completion::what_cannot_be_forced_is_refused
    """,
    "`get_model_config` gives the": """
        test_dev_configs::model_config_fills_in_defaults_and_keeps_what_is_given
        test_dev_configs::model_config_names_the_layers_of_the_family
    """,
    "`GeneratedScenarioCollection.preview(n)`": """
        test_mcp_types::a_preview_is_a_list_of_lines
    """,
    "Unknown constructor fields of": """
        test_model::fields_are_kept_and_unknown_ones_ignored_with_a_warning
        test_trajectories::unknown_fields_are_ignored_with_one_warning_a_name
        test_local::what_a_model_is_stands_in_a_file_without_its_key
    """,
    "A trajectory's metric named": """
        test_run_log::a_metric_called_reward_does_not_mix_into_the_reward
    """,
    "Split names and models become": """
        test_run_log::a_folder_outside_is_refused
        test_run_log::what_is_refused_leaves_no_trace
    """,
    "Sums over a run (`data/cum/...`,": """
        test_run_log::two_programs_add_to_the_same_sums
        test_run_log::a_copy_has_a_log_of_its_own
        test_state::what_the_log_keeps_is_neither_seen_nor_lost
    """,
    "`time/step_wall_s` is logged": """
        test_model::the_wall_time_counts_once_for_a_step
        test_local::gpu_costs_are_logged_when_a_price_is_given
    """,
    "A local run reports no `costs/*/tinker_*`:": """
        test_programs::0_3_tic_tac_toe
        test_pricing::what_a_response_costs
    """,
    "Of releases after 0.5.18 there are": """
        test_wandb::a_run_has_a_name_of_its_own
        test_pipeline_trainer::numbers_in_one_object_and_older_names
    """,
    "Weights & Biases gets the model's": """
        test_wandb::rows_config_and_axes
        test_wandb::a_failure_ends_a_run_only_if_it_was_asked_for_by_name
    """,
    "Models with equal fields are": """
        test_model::equal_fields_make_equal_models
        test_model::a_model_goes_to_another_process
        test_per_loop::threads_with_loops_of_their_own_share_a_client
    """,
    "`log` of an unregistered trainable": """
        test_run_log::a_trainable_model_without_a_backend_logs_at_the_newest_checkpoint_it_finds
    """,
    "`WANDB_API_KEY` without a W&B": """
        test_wandb::without_a_network_a_key_in_the_environment_does_not_stop_the_program
        test_wandb::a_failure_ends_a_run_only_if_it_was_asked_for_by_name
    """,
    "Models and projects are named": """
        test_models::a_name_that_is_no_name_is_refused
    """,
    "Unknown fields of `TrainConfig`": """
        test_model::a_config_that_would_not_act_is_refused
        test_import_paths::configs_of_training
    """,
    "Rows of `history.jsonl` have": """
        test_run_log::the_time_of_a_row_has_its_zone
        test_programs::0_3_tic_tac_toe
    """,
    "`model.train` returns the result.": """
        test_model::training_in_the_ways_of_all_versions
        test_groups::groups_of_any_kind_of_iterable_and_none
    """,
    "`delete_checkpoints` returns": """
        test_model::checkpoints_with_the_best_metric_stay
    """,
    "`TrajectoryGroup` of a generator": """
        test_behaviour_table::results_and_exceptions
        test_behaviour_table::coroutines_give_an_awaitable
        test_behaviour_table::strangers_in_a_group
    """,
    "When one failure too many ends": """
        test_gather::too_many_failures_cancel_and_await_all_siblings
        test_gather::bar_is_closed_when_the_gather_fails
    """,
    "`trajectory_group_batches` forgives": """
        test_batches::each_batch_has_its_own_budget_of_failures
    """,
    "`capture_auto_trajectory` patches": """
        test_auto::every_choice_becomes_a_history
        test_auto::what_a_rollout_raises_is_raised_and_nothing_stays
        test_yielded::nothing_yielded_and_nobody_there
    """,
    "Bars are drawn on a terminal": """
        test_progress::nobody_watches_a_pipe
        test_progress::a_cell_of_a_notebook_has_one_output_without_widgets
    """,
    "Logprobs are in a reply when": """
        test_chat_completions::logprobs_are_in_a_reply_that_asks_for_them
        test_gather::completion_tokens_from_logprobs_or_the_server_s_count
    """,
    "Scores are matched by id, not": """
        test_ruler_scorer::scores_go_to_the_ids_that_they_name
        test_ruler_scorer::what_is_missing_is_asked_for_by_its_ids_alone
        test_ruler_scorer::one_that_the_judge_never_scores_is_unscored_and_no_other
    """,
    "`ruler_score_group` keeps the": """
        test_ruler::a_scored_group_keeps_everything_that_it_had
    """,
    "`swallow_exceptions=True` gives": """
        test_ruler::where_nothing_is_scored_the_error_is_raised_or_swallowed
        test_ruler::where_some_are_scored_the_group_comes_back_also_when_swallowing
        test_ruler::a_cancellation_is_never_swallowed
    """,
    '`ruler` gives ids "1" to "N"': """
        test_ruler::scores_come_in_the_order_of_the_lists_with_ids_from_1
        test_ruler::a_list_without_a_score_is_an_error_that_names_it
    """,
    "Further histories are judged": """
        test_ruler_scorer::further_histories_are_judged
        test_views::long_tool_outputs_are_digested_and_nothing_else
        test_views::what_is_no_json_becomes_text
        test_ruler_scorer::equal_attempts_are_shown_once_and_share_a_score
        test_ruler_scorer::a_group_of_equal_attempts_is_scored_absolutely_and_the_log_says_so
    """,
    "`extra_litellm_params`: litellm's": """
        test_judge_options::options_act_or_are_refused
        test_through_litellm::a_judge_is_asked_through_litellm
        test_ruler::a_missing_key_is_named_before_anything_is_asked
        test_names::what_cannot_be_asked_is_refused_with_the_remedy
    """,
    "Answers are kept in `.art/llm-cache.sqlite3`,": """
        test_ruler_reward::answers_are_kept_in_the_project_s_folder_unless_said_otherwise
        test_ruler_reward::a_run_that_goes_on_does_not_pay_twice
    """,
    "`Trajectories:`, `<context>`": """
        test_presentation::the_layout
        test_presentation::no_content_can_open_or_close_a_block
        test_injection::the_judge_is_told_that_the_blocks_are_data_and_the_user_s_rubric_stands_apart
    """,
    "`debug=True` shows the scores": """
        test_ruler::debug_shows_the_scores
    """,
    "A second `log` of the same split": """
        test_run_log::a_second_call_for_a_step_keeps_the_first_ones_trajectories
    """,
    "Where polars is not installed": """
        test_without_polars::model_log_keeps_everything_and_parquet_is_refused_by_name
        test_exact_lines::both_formats_tell_the_same_and_one_becomes_the_other
    """,
    "Reading gives back everything:": """
        test_trajectory_log::everything_is_read_back
        test_older_logs::a_file_of_an_older_program
        test_trajectory_log::a_dict_in_the_shape_of_a_choice_is_read_back_as_its_message
    """,
    "Registering a model migrates": """
        test_older_logs::registering_keeps_the_originals
        test_exact_lines::a_file_that_is_read_back_differently_changes_nothing
        test_older_logs::errors_and_skipped_files_are_collected
    """,
    "`load_trajectories` warns of": """
        test_load::what_cannot_be_read_is_left_out_and_named
        test_load::importing_makes_no_folder_and_loads_no_polars
        test_aggregates::the_newest_step_is_the_highest
        test_aggregates::mean_of_groups_of_means
    """,
    "Charts change no global settings": """
        test_charts::settings_of_the_program_stay
        test_charts::all_models_each_split_by_itself
        test_charts::comparison_options
    """,
    "Trained are the tokens that": """
        test_life_of_a_token::a_token_makes_the_whole_round
        test_remote::choices_that_cannot_be_trained_are_refused_before_anything_is_sent
    """,
    "A choice trains once in a step:": """
        test_remote::choices_that_cannot_be_trained_are_refused_before_anything_is_sent
    """,
    "A choice of the base model or": """
        test_train_job::any_other_sample_is_refused_by_name
        test_train_job::its_own_recent_samples_train_a_model
        test_batch::a_stale_rollout_is_a_baseline_and_not_trained
    """,
    "A step whose rollouts all": """
        test_remote::a_step_whose_rollouts_all_failed_raises_the_first_failure
        test_remote::a_step_without_any_group_is_refused
        test_sheet::a_step_that_trained_nothing_says_why
        test_remote::a_reward_that_is_no_number_is_refused
    """,
    "If you edit the text of": """
        test_remote::a_choice_that_was_edited_after_it_was_sampled_is_told_once_with_its_place
        test_openai_client::a_text_or_call_that_was_changed_after_its_reply_is_found_out
    """,
    "Rewards that differ by rounding": """
        test_advantages::equal_rewards_and_rounding_residues_give_exactly_zero
    """,
    "One optimizer step a call, over": """
        test_train_job::an_update_for_every_few_sequences
        test_trainer::a_new_process_continues_to_the_same_bytes
    """,
    "The default objective is the same.": """
        test_default_objective::default_options_have_the_gradient_of_the_older_releases
        test_default_table::the_table_has_each_default_once_and_a_reason_where_they_differ
    """,
    "`scale_learning_rate_by_reward_std_dev`": """
        test_options_act::each_keyword_changes_what_it_says
        test_train_job::the_rate_follows_the_batch
    """,
    "`loss_fn_config` and `adam_params`": """
        test_internal_config::what_acts_in_the_optimizer
        test_internal_config::the_call_wins_over_the_model
        test_train_options::a_keyword_is_a_part_of_the_job
    """,
    "A KL reference without a coefficient": """
        test_algorithm_options::what_would_not_act_is_refused_with_the_reason
        test_internal_config::what_would_change_results_is_refused_with_what_to_do
        test_internal_config::what_a_user_of_other_trainers_relies_on_is_refused_with_what_does_it_here
    """,
    "`precalculate_logprobs=True`": """
        test_train_options::precalculated_logprobs_are_what_the_ratio_divides_by_where_there_are_more_updates_than_one
        test_step::one_update_with_the_ratio_to_the_trainer_is_reinforce
    """,
    "`LocalBackend(in_process=True)`": """
        test_local::in_process_is_accepted_and_says_that_it_does_nothing
        test_local::sync_block
    """,
    "`get_inference_name()` is the": """
        test_older_names::the_name_of_the_newest_step_and_of_a_given_one
        test_older_names::a_lease_pins_the_step_in_its_context_alone
        test_options_act::served_names_and_leases
    """,
    "Requests are those of OpenAI": """
        test_sampling_fields::penalties_reach_the_engine_the_ledger_and_the_trainer
        test_chat_completions::what_is_not_supported_is_refused_by_name
        test_drawn_from::what_the_trainer_does_not_compute_is_context_with_its_reason
        test_other_fields::the_page_says_of_each_field_what_the_table_says
        test_other_fields::a_null_is_a_field_that_was_not_given
        test_other_fields::a_chat_tells_its_ids_as_vllm_does
    """,
    "One server has one folder: a": """
        test_start::a_folder_in_use_says_by_whom_and_what_to_do
    """,
    "A base model and a LoRA's shape": """
        test_models::a_name_keeps_its_base_and_its_adapter
        test_older_names::of_two_models_with_one_name_each_is_asked_for_with_its_project
    """,
    "A cancelled `train` goes on": """
        test_earlier::a_job_of_an_earlier_program_has_its_result
        test_trainer_worker::a_dropped_connection_does_not_stop_the_step_and_health_answers
        test_local::after_close_nothing_starts_the_server_again
        test_local::a_cell_that_is_run_again_meets_the_server_it_began
        test_local::one_folder_has_no_two_servers_with_different_options
    """,
    "The endpoint rejects, by name:": """
        test_chat_completions::what_is_not_supported_is_refused_by_name
        test_other_fields::what_would_change_what_is_learned_is_refused_with_the_reason
    """,
    "A fork brings the optimizer": """
        test_fork_and_pull::a_fork_goes_on_exactly_like_the_original
        test_fork::a_model_with_steps_of_its_own_is_refused
    """,
    "Buckets are any fsspec address,": """
        test_push_and_pull::what_was_pushed_is_pulled_and_nothing_is_copied_twice
        test_push_and_pull::two_that_went_on_by_themselves_are_not_mixed
        test_push_and_pull::a_torn_upload_is_no_step
        test_push_and_pull::no_key_reaches_the_bucket
    """,
    "`_experimental_deploy` finds": """
        test_deploy::the_older_name_gives_a_job
        test_deploy::what_no_provider_takes
    """,
    "It speaks to an ART server (`art": """
        test_serverless_endpoint::arguments_win_over_the_environment
        test_serverless_endpoint::what_is_missing_is_said_with_the_remedy
    """,
    "Names are `name@step`": """
        test_other_fields::name_step_means_the_step_in_every_dialect
        test_tenants_train::two_train_side_by_side_as_if_alone
        test_tenants::jobs_and_paths_are_told_to_their_owners
    """,
    "`train` has the same keywords": """
        test_train_options::all_backends_have_one_set_of_keywords
    """,
    "`art init` writes a project": """
        test_init::the_skeleton_trains_evaluates_and_resumes
    """,
    "`art run` is `art serve` on": """
        test_keys::run_is_serve_and_refuses_other_machines_without_a_key
        test_commands::every_verb_explains_itself
    """,
    "There is no `mp_actors` package.": """
        test_signatures::what_is_left_out_is_not_there
    """,
    "Every error that ART raises on purpose": """
        test_behaviour_table::our_errors_are_those_of_python_too
    """,
    "`art`": """
        test_import_paths::the_root_has_every_name
        test_import_paths::what_dir_lists_is_there_after_import_art_alone
    """,
    "`art.types`, `art.trajectories`,": """
        test_signatures::a_name_exists
    """,
    "`art.dev`": """
        test_dev_configs::configs_are_plain_dicts_and_take_unknown_keys
    """,
    "`art.openai`": """
        test_stream_consumers::step_by_step
    """,
    "`art.guided_completion`": """
        test_guided_completion::a_text_is_the_only_choice
    """,
    "`art.utils`": """
        test_signatures::a_call_for_older_releases_fits
    """,
    "`SkyPilotBackend.initialize_cluster(...)` takes": """
        test_signatures::a_call_for_older_releases_fits
        test_end_to_end::a_step_is_trained_on_a_box_and_its_checkpoint_is_here_when_the_box_is_gone
        test_task::a_task_has_no_secret_and_opens_no_port
    """,
    "The box goes down when nobody": """
        test_end_to_end::a_box_goes_down_by_itself_when_the_laptop_dies
        test_task::the_defaults_of_a_plan_are_those_of_initialize_cluster
    """,
    "SkyPilot lives in an environment": """
        test_sky_parser::skypilot_is_imported_by_one_program_that_nothing_of_ours_imports
        test_task::resources_are_a_dictionary_or_an_object_of_skypilot
    """,
    "`art.skypilot`, `.backend`, `.stop_server`": """
        test_import_paths::a_name_is_the_one_of_its_room
    """,
    "`art.auto_trajectory`, `art.yield_trajectory`": """
        test_unbuilt::a_function_of_the_root_can_be_called_whatever_is_imported
    """,
    "`art.pipeline_trainer.types`,": """
        test_import_paths::a_name_is_the_one_of_its_room
    """,
    "`art.utils.strip_logprobs`,": """
        test_signatures::a_module_can_be_imported
    """,
    "`art.megatron`, `art.tinker`,": """
        test_unbuilt::calling_says_what_is_missing_and_what_to_do
    """,
    "`art.loss`, `art.preprocessing`,": """
        test_unbuilt::calling_says_what_is_missing_and_what_to_do
    """,
    "`art.vllm`, `art.local.service`,": """
        test_unbuilt::calling_says_what_is_missing_and_what_to_do
    """,
    "`art.serverless.client`, `art.utils.convert_moe_lora`,": """
        test_unbuilt::calling_says_what_is_missing_and_what_to_do
    """,
}
"""The beginning of a bullet, or of a row of a table -> the tests that hold it."""


def bullets(page: str) -> list[str]:
    """Each bullet, as one line."""
    blocks = re.split(r"\n(?=- |\||\n|#)", page)
    return [" ".join(block[2:].split()) for block in blocks if block.startswith("- ")]


def rows(page: str) -> list[str]:
    """The first cell of each row of the tables of paths."""
    found = []
    for title in TABLES:
        section = page.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]
        cells = [line[2:].split(" | ")[0] for line in section.splitlines() if line.startswith("| ")]
        found += cells[1:]  # without the head
    return found


@cache
def known_tests() -> frozenset[str]:
    return frozenset(
        f"{path.stem}::{name}"
        for path in TESTS.rglob("test_*.py")
        for name in re.findall(
            r"^(?:async )?def test_(\w+)", path.read_text(encoding="utf-8"), flags=re.MULTILINE
        )
    )


def entries(claim: str) -> list[str]:
    return [beginning for beginning in CLAIMS if claim.startswith(beginning)]


@pytest.mark.parametrize("claim", [*bullets(PAGE), *rows(PAGE)])
def test_a_claim_has_its_tests(claim: str) -> None:
    found = entries(claim)
    assert found, f"no test holds this claim: write one and name it in CLAIMS: {claim}"
    assert all(CLAIMS[beginning].split() for beginning in found)


@pytest.mark.parametrize("beginning", CLAIMS)
def test_an_entry_belongs_to_one_claim_and_to_tests_that_exist(beginning: str) -> None:
    claims = [claim for claim in (*bullets(PAGE), *rows(PAGE)) if claim.startswith(beginning)]
    assert len(claims) == 1, f"{beginning!r} begins {len(claims)} claims of the page"
    assert set(CLAIMS[beginning].split()) <= known_tests()


def test_a_new_claim_is_seen() -> None:
    page = PAGE.replace("\n### Folders\n", "\n- A claim that\n  nobody has tested.\n\n### Folders\n")
    [new] = set(bullets(page)) - set(bullets(PAGE))
    assert new == "A claim that nobody has tested." and not entries(new)
    assert len(bullets(PAGE)) > 70 and len(rows(PAGE)) > 10
