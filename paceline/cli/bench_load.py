"""`paceline bench load`: many requests at once."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from paceline.cli import connection
from paceline.cli.bench_options import (
    JsonFile,
    MarkdownFile,
    MaxTokens,
    PlotsDir,
    PromptsFile,
    RepeatPrompts,
    Seed,
    bench_module,
    check_outputs,
    document_of,
    examples,
    give,
    machine,
    option,
    positive,
    run_report,
)
from paceline.cli.run import exits
from paceline.errors import ConfigError

if TYPE_CHECKING:
    from paceline.bench.report import Report

EXAMPLES = examples(
    "paceline bench load --rate 1,2,4 --slo-ttft-ms 500 --slo-itl-ms 100",
    "paceline bench load --address 127.0.0.1:50050 --clients 1,8,32 --requests 256",
    "paceline bench load -c paceline.yaml --rate 8 --json load.json",
)


def load(  # noqa: PLR0917
    rate: Annotated[
        str | None, option("Poisson arrivals a second, an open loop; comma-separated.")
    ] = None,
    clients: Annotated[
        str | None, option("Clients that each wait for their answer, a closed loop.")
    ] = None,
    requests: Annotated[int, option("Requests of each load.", min=1, max=1_000_000)] = 64,
    max_tokens: MaxTokens = 64,
    temperature: Annotated[float, option("0 is greedy.", min=0.0)] = 0.0,
    ignore_eos: Annotated[bool, option("Go on past the model's own end.")] = True,
    speculation: Annotated[bool, option("Use the drafter.")] = True,
    slo_ttft_ms: Annotated[
        float | None, option("A request is good if its first token comes by then.", min=0.0)
    ] = None,
    slo_itl_ms: Annotated[
        float | None, option("… and its mean time between tokens is no longer.", min=0.0)
    ] = None,
    seed: Seed = 0,
    prompts: PromptsFile = None,
    repeat_prompts: RepeatPrompts = False,
    config: Annotated[
        Path | None,
        option("Services to start, unless --address is given.", None, "-c", "--config"),
    ] = None,
    json_file: JsonFile = None,
    markdown: MarkdownFile = None,
    plots: PlotsDir = None,
    address: Annotated[
        str | None,
        option("A running orchestrator.", "Connection", metavar="HOST:PORT"),
    ] = None,
    timeout: connection.Timeout = None,
    token_file: connection.TokenFile = None,
    tls_ca_file: connection.TlsCaFile = None,
    tls_cert_file: connection.TlsCertFile = None,
    tls_key_file: connection.TlsKeyFile = None,
    tls_server_name: connection.TlsServerName = None,
) -> None:
    """Many requests at once: throughput, latency percentiles, goodput and errors.

    Without --rate and --clients: 1, 4 and 16 clients.
    """
    with exits():
        check_outputs(json_file, markdown, plots)
        module, source = bench_module("load"), bench_module("prompts")
        summary, processes = bench_module("summary"), bench_module("processes")
        if address is not None and config is not None:
            raise ConfigError("--address and --config: only one may be given")
        connecting = {
            "--timeout": timeout,
            "--token-file": token_file,
            "--tls-ca-file": tls_ca_file,
            "--tls-cert-file": tls_cert_file,
            "--tls-key-file": tls_key_file,
            "--tls-server-name": tls_server_name,
        }
        given = [name for name, value in connecting.items() if value is not None]
        if address is None and given:
            raise ConfigError(f"{given[0]}: is for a running orchestrator and needs --address")
        asked = source.load_prompts(source.GENERAL_FILE if prompts is None else prompts)
        options = module.LoadOptions(
            rates=positive("rate", rate, float),
            clients=positive("clients", clients, int)
            if clients or rate
            else tuple(number for number in (1, 4, 16) if number <= requests),
            num_requests=requests,
            max_tokens=max_tokens,
            temperature=temperature,
            ignore_eos=ignore_eos,
            speculation=speculation,
            level=summary.ServiceLevel(
                None if slo_ttft_ms is None else slo_ttft_ms / 1e3,
                None if slo_itl_ms is None else slo_itl_ms / 1e3,
            ),
            seed=seed,
            repeat_prompts=repeat_prompts,
        )
        if any(number > requests for number in options.clients):
            raise ConfigError(f"--clients {clients}: some would have none of --requests {requests}")
        document = None if address is not None else document_of(config)

        async def work() -> Report:
            async with AsyncExitStack() as stack:
                client = connection.make_client(
                    connection.ADDRESS if address is None else address,
                    timeout=timeout,
                    token_file=token_file,
                    tls_ca_file=tls_ca_file,
                    tls_cert_file=tls_cert_file,
                    tls_key_file=tls_key_file,
                    tls_server_name=tls_server_name,
                )
                if document is None:
                    await stack.enter_async_context(client)
                else:
                    services = await stack.enter_async_context(processes.serving(document))
                    client = services.client
                server = document or {"address": address}
                report: Report = await module.run_load(
                    client, asked, options, server=server, machine=machine()
                )
                return report

        give(run_report(work()), json_file, markdown, plots)
