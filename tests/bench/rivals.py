"""nginx and haproxy, one worker each, as parts of the bench run them beside envd and the proxy."""
import subprocess

import bench


def nginx(folder, port, http, connections=1024):
    """With this in its `http`, once it listens at the port."""
    paths = " ".join(f"{name}_temp_path {folder}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    with open(f"{folder}/nginx.conf", "w", encoding="ascii") as file:
        file.write(f"""daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/nginx.log; worker_rlimit_nofile 20000;
        events {{ worker_connections {connections}; }}
        http {{ access_log off; keepalive_requests 100000000; {paths} {http} }}""")
    running = bench.Running("nginx", "-p", folder, "-c", f"{folder}/nginx.conf", stderr=subprocess.DEVNULL)
    running.port = port
    bench.wait_for_port(port, running.process)
    return running


def nginx_files(folder, root):
    """What it sends with sendfile from below `root`."""
    port = bench.free_port()
    return nginx(folder, port, f"sendfile on; tcp_nopush on; server {{ listen 127.0.0.1:{port}; root {root}; }}")


def upstream(name, port, kept=64):
    return f"upstream {name} {{ server 127.0.0.1:{port}; keepalive {kept}; keepalive_requests 100000000; }}"


def nginx_proxy(folder, port, back, listen="listen 127.0.0.1:{port} backlog=4096;", http="", locations="", kept=64, connections=1024):
    """In front of a server at the port `back`, with more in its `http` and more locations."""
    return nginx(folder, port, f"""{http} {upstream("back", back, kept)} proxy_http_version 1.1; proxy_set_header Host $host;
          server {{ {listen.format(port=port)} {locations}
            location / {{ proxy_pass http://back; proxy_set_header Host $host; proxy_set_header Connection ""; }} }}""", connections)


def haproxy(folder, port, back, binds="bind 127.0.0.1:{port}", settings="", routes="", backends="", connections=1024):
    """The same with more lines in its `global`, and routes to more backends."""
    with open(f"{folder}/haproxy.cfg", "w", encoding="ascii") as file:
        file.write(f"""
global
    nbthread 1
    maxconn {connections}
    no strict-limits
    {settings}
defaults
    mode http
    timeout connect 3s
    timeout client 60s
    timeout server 60s
    timeout tunnel 60s
    http-reuse always
frontend front
    {binds.format(port=port)}
    {routes}
    default_backend back
backend back
    server back 127.0.0.1:{back}
{backends}
""")
    running = bench.Running("haproxy", "-q", "-f", f"{folder}/haproxy.cfg", stderr=subprocess.DEVNULL)
    running.port = port
    bench.wait_for_port(port, running.process)
    return running
