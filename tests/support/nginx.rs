//! nginx on the same tree: the other side of every comparison, and the server the tests themselves are tried against.

use super::server::Server;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

/// nginx with one worker, files by sendfile, an open file cache, and no access log.
pub struct Nginx {
    pub root: PathBuf,
    pub sendfile: bool,
    pub pin: Option<usize>,
    /// Access log with the bytes of one body per line.
    pub log: Option<PathBuf>,
}

impl Nginx {
    pub fn spawn(self) -> Server {
        let binary = super::which("nginx").expect("nginx is installed");
        let scratch = tempfile::tempdir().expect("a scratch folder");
        // A free port: asked for, given back, and taken by nginx a moment later.
        let address: SocketAddr = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let folder = scratch.path().display();
        let affinity = match self.pin {
            Some(cpu) => format!("worker_cpu_affinity {:b};", 1u64 << cpu),
            None => String::new(),
        };
        let user = if rustix::process::geteuid().is_root() { "user root;" } else { "" };
        let log = self.log.as_ref().map_or_else(
            || "access_log off;".to_owned(),
            |path| format!("log_format bytes $body_bytes_sent; access_log {} bytes;", path.display()),
        );
        let config = format!(
            "daemon off; pid {folder}/pid; error_log {folder}/error.log; worker_processes 1; {affinity} {user}
worker_rlimit_nofile 40000;
events {{ worker_connections 20000; use epoll; multi_accept on; }}
http {{
  {log} sendfile {sendfile}; tcp_nopush on; tcp_nodelay on; server_tokens off;
  open_file_cache max=1024 inactive=60s; open_file_cache_valid 1s; open_file_cache_min_uses 1; open_file_cache_errors on;
  keepalive_requests 1000000000; keepalive_timeout 300s; etag on; charset utf-8;
  client_body_temp_path {folder}/b; proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f;
  uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s; include /etc/nginx/mime.types;
  server {{ listen {address} reuseport backlog=4096; root {root}; index index.html; }}
}}\n",
            sendfile = if self.sendfile { "on" } else { "off" },
            root = self.root.display(),
        );
        let file = scratch.path().join("nginx.conf");
        std::fs::write(&file, config).expect("nginx.conf");
        let child = Command::new(binary)
            .arg("-p")
            .arg(scratch.path())
            .arg("-c")
            .arg(&file)
            .arg("-e")
            .arg(scratch.path().join("error.log"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("nginx starts");
        let server = Server::foreign(child, address, scratch);
        // nginx announces nothing; its socket accepting is the only sign.
        super::eventually("nginx accepts", Duration::from_secs(10), || {
            TcpStream::connect(address).is_ok() && !super::process::children(server.pid()).is_empty()
        });
        server
    }
}
