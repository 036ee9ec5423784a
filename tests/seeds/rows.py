"""The concrete promises of five versions of vLLM's guide to pooling models, and the test of each.

A test is named by its file and function; a file alone stands for all tests in it. A row works, or is refused for a
reason that docs/vllm.md gives as well.
"""

from __future__ import annotations

from typing import NamedTuple

NUM_ROWS = 104


class Row(NamedTuple):
    number: int
    words: str
    test: str
    result: str = "works"


ROWS = [
    # runner and conversion
    Row(1, "runner pooling", "test_conversion.py::test_runner_pooling"),
    Row(2, "runner auto", "test_conversion.py::test_runner_auto"),
    Row(3, "convert embed", "test_conversion.py::test_convert_embed"),
    Row(4, "convert classify", "test_conversion.py::test_convert_classify"),
    Row(5, "convert reward", "test_conversion.py::test_convert_reward"),
    Row(6, "LLM.reward on *ForRewardModeling", "test_conversion.py::test_llm_reward_on_reward_modeling_names"),
    Row(7, "*ForTextEncoding: embed", "test_conversion.py::test_table_row_for_text_encoding_gives_embed"),
    Row(8, "*EmbeddingModel: embed", "test_conversion.py::test_table_row_embedding_model_gives_embed"),
    Row(9, "*Model: embed", "test_conversion.py::test_table_row_model_gives_embed"),
    Row(10, "*RewardModel: embed", "test_conversion.py::test_table_row_for_reward_modeling_gives_embed"),
    Row(
        11,
        "*For*Classification: classify, token_classify, score",
        "test_conversion.py::test_table_row_for_classification_gives_classify_and_score",
    ),
    Row(12, "*ClassificationModel: classify", "test_conversion.py::test_table_row_classification_model_gives_classify"),
    Row(13, "Pooler.get_supported_tasks", "test_conversion.py::test_pooler_get_supported_tasks"),
    Row(14, "converted embedder: LAST", "test_conversion.py::test_converted_embed_default_is_last_and_normalised"),
    Row(15, "converted classifier: LAST", "test_conversion.py::test_converted_classify_default_is_last_and_softmax"),
    Row(
        16,
        "converted reward model: ALL, no activation",
        "test_conversion.py::test_converted_reward_default_is_all_without_normalisation_and_softmax",
    ),
    Row(17, "modules.json first", "test_conversion.py::test_modules_json_takes_priority_over_the_models_default"),
    Row(18, "--pooler-config before both", "test_conversion.py::test_pooler_config_takes_priority_over_both"),
    Row(19, "--override-pooler-config", "test_conversion.py::test_override_pooler_config_flag"),
    Row(20, "override_pooler_config=", "test_conversion.py::test_override_pooler_config_option"),
    # tasks
    Row(21, "task classify", "test_tasks.py::test_task_classify"),
    Row(22, "task score", "test_tasks.py::test_task_score"),
    Row(23, "task embed", "test_tasks.py::test_task_embed"),
    Row(24, "task token_classify", "test_tasks.py::test_task_token_classify"),
    Row(25, "task token_embed", "test_tasks.py::test_task_token_embed"),
    Row(26, "task plugin", "test_tasks.py::test_task_plugin"),
    Row(27, "task encode", "test_tasks.py::test_task_encode_names_its_successors"),
    Row(28, "pooling_task reward", "test_tasks.py::test_pooling_task_reward"),
    Row(29, "three score types", "test_tasks.py::test_score_types"),
    Row(30, "LLM.score of an embedder", "test_tasks.py::test_score_falls_back_to_embed"),
    # samples
    Row(31, "sample LLM.embed", "test_offline_samples.py::test_sample_embed_e5_small"),
    Row(32, "sample LLM.embed, task=", "test_offline_samples.py::test_sample_embed_e5_mistral_with_task_embed"),
    Row(33, "sample LLM.classify", "test_offline_samples.py::test_sample_classify_apeach"),
    Row(34, "sample LLM.score", "test_offline_samples.py::test_sample_score_bge_reranker"),
    Row(35, "sample LLM.reward", "test_offline_samples.py::test_sample_reward_internlm2"),
    Row(
        36,
        "sample LLM.encode of a reward model",
        "test_offline_samples.py::test_sample_encode_of_a_reward_model_without_a_task",
    ),
    Row(37, "sample LLM.encode", "test_offline_samples.py::test_sample_encode_with_task_embed"),
    Row(38, "LLM.encode without a task", "test_offline_samples.py::test_encode_without_a_task_lists_the_choices"),
    Row(39, "sample /pooling", "test_online_samples.py::test_sample_pooling_with_task_embed"),
    Row(40, "/pooling: nested lists", "test_online_samples.py::test_pooling_returns_nested_lists"),
    Row(41, "Embeddings API", "test_online_samples.py::test_embeddings_api"),
    Row(42, "Classification API", "test_online_samples.py::test_classification_api"),
    Row(43, "Score API", "test_online_samples.py::test_score_api"),
    # Matryoshka
    Row(44, "refusal of dimensions", "test_matryoshka.py::test_matryoshka_refused_with_the_exact_error_body"),
    Row(45, "is_matryoshka", "test_matryoshka.py::test_is_matryoshka_allows_any_size"),
    Row(46, "matryoshka_dimensions", "test_matryoshka.py::test_matryoshka_dimensions_allows_only_these_sizes"),
    Row(47, "--hf-overrides, --hf_overrides", "test_matryoshka.py::test_hf_overrides_flag"),
    Row(48, "hf_overrides=", "test_matryoshka.py::test_hf_overrides_option_as_a_dict_or_a_function"),
    Row(49, "PoolingParams(dimensions=)", "test_matryoshka.py::test_pooling_params_dimensions"),
    Row(50, "dimensions in a body", "test_matryoshka.py::test_dimensions_in_a_request_body"),
    Row(51, "printed output", "test_matryoshka.py::test_the_printed_output_shows_the_size"),
    # ColBERT and ColQwen3
    Row(52, "HF_ColBERT", "test_colbert.py::test_hf_colbert_works_out_of_the_box"),
    Row(53, "ColBERTModernBertModel", "test_colbert.py::test_colbert_modern_bert_model_override"),
    Row(54, "ColBERTJinaRobertaModel", "test_colbert.py::test_colbert_jina_roberta_model_override"),
    Row(55, "body of /rerank", "test_colbert.py::test_rerank_body"),
    Row(56, "body of /score", "test_colbert.py::test_score_body"),
    Row(57, "ColQwen3: texts", "test_colqwen3.py::test_colqwen3_text_rerank_and_score"),
    Row(58, "ColQwen3: images on /score", "test_colqwen3.py::test_colqwen3_score_of_image_documents"),
    Row(59, "ColQwen3: images on /rerank", "test_colqwen3.py::test_colqwen3_rerank_of_image_documents_with_top_n"),
    Row(60, "ColQwen3: /pooling", "test_colqwen3.py::test_colqwen3_pooling_of_texts_and_of_messages_with_an_image"),
    Row(61, "--max-model-len", "test_colqwen3.py::test_max_model_len"),
    Row(62, "OpsColQwen3Model", "test_colqwen3.py::test_ops_colqwen3_model"),
    Row(63, "Qwen3VLNemotronEmbedModel", "test_nemotron.py"),
    Row(64, "LLM.score with images", "test_colqwen3.py::test_llm_score_with_images"),
    Row(65, "image URLs in LLM", "test_colqwen3.py::test_http_image_urls_offline"),
    # bge-m3
    Row(66, "BgeM3EmbeddingModel", "test_bge_m3.py::test_bge_m3_embedding_model_override"),
    Row(67, "bge-m3: weights and /tokenize", "test_bge_m3.py::test_token_weights_pair_with_tokenize"),
    # chunked processing
    Row(68, "chunked: jina-v3, jina-v4, Qwen3-Embedding", "test_chunked_configurations.py"),
    Row(69, "chunked: the command", "test_chunked.py::test_chunked_command_with_task_embed"),
    Row(70, "chunked: defaults", "test_chunked.py::test_chunked_is_off_by_default"),
    Row(71, "chunked: max_embed_len", "test_chunked.py::test_chunked_refuses_texts_above_max_embed_len"),
    Row(72, "chunked: log lines", "test_chunked.py::test_chunked_logs_both_lines"),
    Row(73, "chunked: mean", "test_chunked.py::test_chunked_result_is_the_weighted_mean_with_the_same_size"),
    Row(74, "chunked: no environment variable", "test_chunked.py::test_chunked_needs_no_environment_variable"),
    Row(75, "chunked: OpenAI client", "test_chunked.py::test_chunked_openai_client_sample"),
    # parameters
    Row(76, "--task, task=", "test_parameters.py::test_task_option"),
    Row(77, "PoolingParams: fields", "test_parameters.py::test_pooling_params_fields"),
    Row(78, "PoolingParams.clone", "test_parameters.py::test_pooling_params_clone"),
    Row(79, "PoolingParams.verify", "test_parameters.py::test_pooling_params_verify"),
    Row(80, "PoolerConfig: fields", "test_parameters.py::test_pooler_config_fields"),
    Row(81, "PoolerConfig: defaults", "test_parameters.py::test_pooler_config_defaults"),
    Row(
        82,
        "parameters of another task",
        "test_parameters.py::test_parameters_of_another_task_are_refused_with_the_valid_ones",
    ),
    Row(83, "normalize and classify", "test_parameters.py::test_normalize_on_a_classification_task_is_refused"),
    Row(84, "normalize", "test_parameters.py::test_embeddings_are_normalised_unless_normalize_is_false"),
    Row(85, "softmax, sigmoid, identity", "test_parameters.py::test_the_problem_type_selects_the_activation"),
    Row(86, "use_activation=False", "test_parameters.py::test_use_activation_false_gives_logits"),
    Row(87, "CLS, LAST, MEAN, ALL", "test_parameters.py::test_pooling_methods"),
    Row(
        88,
        "`PoolingMethod`, `CLSPool`, `EmbeddingPoolerHead`, ...",
        "test_parameters.py::test_pooling_methods_are_functions_and_heads_are_parts_of_the_pooler",
        "refused: internals; pooling methods are functions here",
    ),
    Row(89, "order of the head", "test_parameters.py::test_head_order_is_projector_then_cut_then_normalise"),
    Row(
        90,
        "`client.embeddings.create(normalize=...)`",
        "test_parameters.py::test_openai_client_with_dimensions_and_normalize",
        "refused: by OpenAI's client itself; extra_body works",
    ),
    # scoring
    Row(91, "sample /classify", "test_online_samples.py::test_classify_requests_sample"),
    Row(92, "sample /score", "test_online_samples.py::test_score_cross_encoder_sample"),
    Row(93, "1:1, 1:N, N:N", "test_scoring.py::test_one_to_one_one_to_many_and_many_to_many"),
    Row(94, "Qwen3-Reranker: overrides", "test_scoring.py::test_qwen3_reranker_hf_overrides"),
    Row(
        95,
        "Qwen3-Reranker: formatted texts",
        "test_scoring.py::test_qwen3_reranker_texts_that_are_already_formatted",
    ),
    Row(96, "Cohere's client", "test_scoring.py::test_cohere_rerank"),
    Row(97, "multi-vector retrieval", "test_scoring.py::test_multi_vector_retrieval"),
    # programs and the rest
    Row(98, "example programs", "test_programs.py::test_basic_examples_run_with_engine_args"),
    Row(99, "softmax=, activation=", "test_parameters.py::test_older_names_of_use_activation"),
    Row(
        100,
        "model_config.pooler_config",
        "test_parameters.py::test_model_config_shows_the_resolved_pooler_config",
    ),
    Row(101, "Qwen2.5-Math-RM-72B", "test_programs.py::test_qwen_math_rm_72b_runs_on_several_devices"),
    Row(102, "message about plugins", "test_programs.py::test_plugin_error_names_our_example"),
    Row(103, "jina-reranker-v3", "test_scoring.py::test_jina_reranker_v3"),
    Row(104, "STEP", "test_parameters.py::test_step_pooling"),
]
